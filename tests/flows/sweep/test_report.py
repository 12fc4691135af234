"""What is shown of a sweep: its report, and what its command prints."""

from __future__ import annotations

from contextlib import nullcontext
from math import nan

import pandas as pd
import pytest
import typer

from flows import commands_sweep, run
from flows.report import report_runs
from flows.sweep import sweep
from flows.sweep_plan import ranked, trials_of

# Prefect, Ray and MLflow warn in ways that are theirs.
pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("default")]

METRIC = "eval/n1/f1"


def test_the_report_of_a_sweep_needs_mlflow_alone(
    good, write, trains, tracker, tmp_path, monkeypatch, page
):
    plan = write(("metric:", "prune: true\nmetric:"), ("trials: 6", "trials: 9"))
    bad = iter(range(99))
    trains(lambda e: nan if next(bad) == 2 else good(e), curve=(0.5, 0.9))
    result = sweep(plan)
    monkeypatch.setattr("tasks.databases.optuna_uri", lambda: 1 / 0)
    file, table = report_runs(tracker, [result.run_id], tmp_path)
    html = file.read_text()
    first, second = ranked(trials_of(tracker, result.run_id))[:2]
    assert table == result.table and "pruned" in table
    assert "chosen on the very questions that are reported" in html and "1 failed" in html
    difference = first.outcome.value - second.outcome.value
    line = f"The best over the runner-up, {first.name} - {second.name} by {METRIC}: "
    assert f"{line}{difference:+.3f} [" in table
    assert f"{first.name} - {second.name}, K = 1, greedy" in table
    rows = pd.read_csv(tmp_path / "sweep.csv")
    assert len(rows) == 9 and rows["value"].isna().sum() == (rows["state"] != "complete").sum()
    figures = {path.name for path in (tmp_path / "figures").glob("sweep_*.png")}
    assert {"sweep_trials.png", "sweep_parallel.png"} <= figures
    lines = pd.read_csv(tmp_path / "figures" / "sweep_parallel.csv")
    assert lines["value"].isna().sum() == rows["value"].isna().sum()


def test_a_sweep_that_is_not_done_is_reported_as_far_as_it_is(
    good, cut_off, write, trains, tracker, tmp_path
):
    calls = iter(range(99))
    trains(lambda e: KeyboardInterrupt() if next(calls) == 4 else good(e))
    run_id = cut_off(write())
    _, table = report_runs(tracker, [run_id], tmp_path)
    assert "mine: 3 trials: 2 complete, 1 cut off" in table
    assert "The best over the runner-up" in table


def test_what_the_command_prints_and_its_exit_status(
    good, write, trains, monkeypatch, capsys, page, own_environment
):
    monkeypatch.setattr(run, "services", lambda experiment: nullcontext())
    plan = write(("trials: 6", "trials: 2"), ("seeds: [1, 2]", "seeds: [1]"))
    calls = iter(range(99))
    trains(lambda e: nan if next(calls) == 0 else good(e))
    monkeypatch.setattr(commands_sweep, "load_sweep", lambda *_, **__: plan)
    with pytest.raises(typer.Exit) as end:
        commands_sweep.sweep("mine.yaml")
    assert end.value.exit_code == 1
    shown = capsys.readouterr()
    assert "<- best" in shown.out and f"FAILED  trial 0: seed 1: {METRIC} is nan" in shown.out
    assert "mempo train --preset " in shown.out and "best.yaml" in shown.out
    assert "1 of 2 trials failed" in shown.err
    assert "trial 0: failed: seed 1" in shown.err and "1 of 2 trials are over" in shown.err
    trains(good)
    commands_sweep.sweep("mine.yaml")  # all is well: status 0
    commands_sweep.sweep("mine.yaml", show=True)
    assert "2 trials (random), 1 at a time" in capsys.readouterr().out
