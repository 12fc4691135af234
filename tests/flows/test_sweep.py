"""Sweeps: real Prefect, MLflow and Optuna; training runs are stand-ins."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pandas as pd
import pytest

from conf.load import load, sha256
from conf.sweep import Sweep, load_sweep
from flows import trial as trial_module
from flows.recording import RunResult, recorded
from flows.report import report_runs
from flows.sweep import sweep
from flows.sweep_plan import (
    difference,
    outcome_of,
    plan_of,
    plan_tags,
    ranked,
    run_to_resume,
    trials_of,
)
from flows.watching import Pruned, current_watch
from mempo.learners import checkpoint
from tasks import store
from tasks.tracking import Tracker

pytestmark = [
    pytest.mark.services,
    pytest.mark.filterwarnings("default"),  # Prefect, Ray and MLflow warn in ways that are theirs
]

METRIC = "eval/n1/f1"
FILE = f"""
description: for tests
preset: test
seeds: [1, 2]
set: [iterations=4, evaluate.every=1, "evaluate.objectives=[1]", evaluate.sampled=false]
method: random
trials: 6
metric: {METRIC}
space:
  learner.lr: {{low: 1.0e-4, high: 1.0e-2, log: true}}
  memory.weight: [0, 1.0]
"""


@pytest.fixture
def write(home: Path, request: pytest.FixtureRequest):
    """A sweep of this test's own, in an MLflow experiment of its own."""

    def write(*changes: tuple[str, str], **options) -> Sweep:
        text = FILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = home / "mine.yaml"
        path.write_text(text)
        overrides = [f"tracking.experiment={request.node.name}", *options.pop("overrides", ())]
        return load_sweep(str(path), overrides=overrides, **options)

    return write


@pytest.fixture
def tracker(home: Path, request: pytest.FixtureRequest) -> Tracker:
    return Tracker(experiment=request.node.name)


@pytest.fixture
def page() -> None:
    """For tests that look at the page: it is drawn, which takes seconds."""


@pytest.fixture(autouse=True)
def no_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(tracker: Tracker, run_ids: list[str], folder: Path) -> tuple[Path, str]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text("")
        return folder / "report.html", ""

    if "page" not in request.fixturenames:
        monkeypatch.setattr("flows.sweep.report_runs", nothing)


class Trains:
    """Stands for the `train` flow: a run in MLflow with an evaluation of two questions.

    `score(experiment)` is its F1, or an exception that it ends with; `curve` what a watch is shown
    before.
    """

    def __init__(self, score, curve=()):
        self.score, self.curve = score, curve
        self.began: list[tuple[str, int]] = []
        self.resumed: list[str] = []

    def __call__(self, experiment, *, name, parent, method, tags, resume) -> RunResult:
        self.began.append((method, experiment.seed))
        self.resumed += [resume] if resume else []
        with recorded(
            experiment, "train", name=name, parent=parent, method=method, tags=tags, resume=resume
        ) as record:
            found = self.score(experiment)
            if isinstance(found, BaseException):
                raise found
            for step, share in enumerate(self.curve, start=1):
                measured = {METRIC: share * found}
                record.log(measured, step)
                try:
                    if watch := current_watch():
                        watch(step, measured)
                except Pruned as stop:
                    record.tracker.set_tags(record.run_id, {"mempo.pruned": str(stop.iteration)})
                    return RunResult(record.run_id, "", pruned=stop.iteration)
            rows = [
                {"mode": "greedy", "objectives": 1, "question_id": q, "f1": found + shift, "em": 0}
                | {"format": 1, "p_answer": None, "tt": 10, "pt": 5, "steps": 3}
                for q, shift in (("a", 0.01), ("b", -0.01))
            ]
            metrics = {METRIC: found, "eval/n1/em": 0.0}
            record.log(metrics, experiment.iterations)
            record.tracker.log_text(record.run_id, json.dumps(rows), "evaluation/tasks.json")
        return RunResult(record.run_id, "", metrics=metrics)


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch):
    def trains(score, curve=()) -> Trains:
        stand_in = Trains(score, curve)
        monkeypatch.setattr(trial_module, "train", stand_in)
        return stand_in

    return trains


def good(experiment) -> float:
    """Larger for a larger learning rate and a larger weight; seed 2 a little better."""
    return 50 * experiment.learner.lr + 0.1 * experiment.memory.weight + 0.01 * experiment.seed


def states(tracker: Tracker, run_id: str) -> list[str]:
    return [trial.state for trial in trials_of(tracker, run_id)]


def test_trials_are_runs_with_a_run_for_each_seed_and_the_best_is_a_preset(write, trains, tracker):
    plan = write()
    stand_in = trains(good)
    result = sweep(plan)
    assert stand_in.began == [(f"trial {n}", seed) for n in range(6) for seed in (1, 2)]
    trials = trials_of(tracker, result.run_id)
    assert [t.number for t in trials] == list(range(6)) and result.trials == 6
    assert result.failed == {} and tracker.run_info(result.run_id).kind == "sweep"
    for trial in trials:
        assert (trial.run.kind, trial.run.status, trial.state) == ("trial", "FINISHED", "complete")
        experiments = [plan.experiment(trial.point, seed) for seed in (1, 2)]
        values = {e.seed: good(e) for e in experiments}
        assert trial.outcome.by_seed == values
        assert trial.outcome.value == pytest.approx(sum(values.values()) / 2, abs=1e-15)
        assert trial.run.metrics[METRIC] == pytest.approx(trial.outcome.value)
        assert set(trial.run.params) == {"learner.lr", "memory.weight"}
        runs = [tracker.run_info(run) for run in tracker.children(trial.run.run_id)]
        assert [(r.kind, r.tags["mempo.seed"]) for r in runs] == [("train", "1"), ("train", "2")]
        assert {r.tags["mempo.trial"] for r in runs} == {str(trial.number)}
        assert [r.tags["mempo.config_sha256"] for r in runs] == [sha256(e) for e in experiments]
    best = ranked(trials)[0]
    assert result.value == best.outcome.value == max(t.outcome.value for t in trials)
    assert result.best == str(store.run_folder(result.run_id) / "best.yaml")
    text = Path(result.best).read_text()
    assert text.startswith(f"# trial {best.number} of the sweep mine (MLflow run {result.run_id})")
    assert sha256(load(result.best)) == sha256(plan.experiment(best.point, 1))
    assert sha256(load(result.best, seed=2)) == sha256(plan.experiment(best.point, 2))
    artifacts = {a.path for a in tracker.connect()[0].list_artifacts(result.run_id)}
    assert {"best.yaml", "sweep.json", "report", "config.yaml"} <= artifacts


def test_a_trial_without_a_finite_value_never_wins_and_stops_no_other(write, trains, tracker, page):
    bad = {1: nan, 2: inf, 3: RuntimeError("out of\nmemory"), 4: -inf}
    begun = []

    def score(experiment):
        begun.append(experiment)
        number = len({e.learner.lr for e in begun}) - 1
        return bad.get(number, good(experiment)) if experiment.seed == 2 else good(experiment)

    trains(score)
    result = sweep(write())
    trials = trials_of(tracker, result.run_id)
    assert [t.state for t in trials] == ["complete", *["failed"] * 4, "complete"]
    assert [t.run.status for t in trials] == ["FINISHED", *["FAILED"] * 4, "FINISHED"]
    reasons = {f"trial {n}": f"seed 2: {METRIC} is {bad[n]}" for n in (1, 2, 4)}
    reasons["trial 3"] = "seed 2: RuntimeError: out of memory"
    assert result.failed == reasons
    assert {t.number for t in ranked(trials)} == {0, 5}
    assert Path(result.best).read_text().startswith(("# trial 0 ", "# trial 5 "))
    html, tags = Path(result.report).read_text(), tracker.run_info(result.run_id).tags
    for name, reason in reasons.items():
        assert f"{name} failed: {reason}" in html and f"{name}: {reason}" in tags["mempo.failed"]
        assert reason in result.table
    # To the search they have no value, either.
    import optuna

    from tasks.databases import optuna_uri

    told = optuna.load_study(study_name=result.run_id, storage=optuna_uri()).trials[1:5]
    assert [(t.state.name, t.value) for t in told] == [("FAIL", None)] * 4


def test_a_sweep_without_any_value_fails(write, trains, tracker):
    trains(lambda _: nan)
    with pytest.raises(RuntimeError, match=f"none of the 2 trials .* trial 0: seed 1: {METRIC}"):
        sweep(write(("trials: 6", "trials: 2")))
    (run,) = tracker.find({"mempo.kind": "sweep"})
    assert run.status == "FAILED" and states(tracker, run.run_id) == ["failed", "failed"]
    _, table = report_runs(tracker, [run.run_id], store.home() / "lost")
    assert "2 trials: 2 failed" in table and "No trial has a value yet" in table


def test_a_poor_trial_is_stopped_with_its_first_seed_and_has_no_value(write, trains, tracker, page):
    plan = write(("metric:", "prune: true\nmetric:"), ("trials: 6", "trials: 9"))
    stand_in = trains(good, curve=(0.5, 0.9))
    result = sweep(plan)
    trials = trials_of(tracker, result.run_id)
    pruned = [t for t in trials if t.state == "pruned"]
    assert pruned and [t.state for t in trials[:3]] == ["complete"] * 3
    medians = pd.Series([good(plan.experiment(t.point, 1)) for t in trials[:3]]).median()
    assert all(good(plan.experiment(t.point, 1)) < medians for t in pruned[:1])
    for trial in pruned:
        assert trial.run.status == "FINISHED" and METRIC not in trial.run.metrics
        assert trial.outcome.reason.startswith(f"stopped, seed 1: {METRIC} 0.")
        (child,) = [tracker.run_info(run) for run in tracker.children(trial.run.run_id)]
        assert child.status == "FINISHED" and child.tags["mempo.pruned"] == "1"
        assert (trial.name, 2) not in stand_in.began
    # Nobody watches the second seed, so nothing is reported twice or judged by another seed.
    assert Counter(seed for _, seed in stand_in.began) == {1: 9, 2: 9 - len(pruned)}
    assert result.failed == {} and "pruned" in result.table


def test_a_grid_measures_each_point_once(write, trains, tracker):
    plan = write(
        ("method: random\ntrials: 6", "method: grid"),
        ("{low: 1.0e-4, high: 1.0e-2, log: true}", "[1.0e-3, 2.0e-3, 3.0e-3]"),
        overrides=["cluster.parallel=3"],
    )
    trains(good)
    result = sweep(plan)
    points = [t.point for t in trials_of(tracker, result.run_id)]
    assert points == list(plan.grid) and len(points) == 6


def test_settings_that_do_not_go_together_fail_as_a_trial(write, trains, tracker):
    plan = write(
        ("learner.lr: {low: 1.0e-4, high: 1.0e-2, log: true}", "memory.group: [question, step]"),
        ("memory.weight: [0, 1.0]", "rollout.group_size: [4, 1]"),
    )
    trains(lambda e: 0.5)
    result = sweep(plan)
    trials = trials_of(tracker, result.run_id)
    alone = [t for t in trials if list(t.point.values()) == ["step", 1]]
    assert alone and result.failed == {t.name: t.outcome.reason for t in alone}
    assert all("alone in its group" in t.outcome.reason for t in alone)
    assert states(tracker, result.run_id).count("complete") == 6 - len(alone)


class Stop(KeyboardInterrupt):
    """Stands for a kill: nothing above it in the sweep handles it."""


def cut_off(plan: Sweep, tracker: Tracker) -> str:
    with pytest.raises(KeyboardInterrupt):
        sweep(plan)
    return run_to_resume(tracker, plan, "auto")


def test_a_sweep_that_was_cut_off_while_training_goes_on_with_the_same_points(
    write, trains, tracker, monkeypatch
):
    plan = write(("method: random", "method: tpe"))
    trains(good)
    whole = trials_of(tracker, sweep(plan).run_id)
    calls = []

    def dies(experiment):
        calls.append(experiment)
        return Stop() if len(calls) == 6 else good(experiment)  # the second seed of trial 2

    trains(dies)
    run_id = cut_off(plan, tracker)
    assert states(tracker, run_id) == ["complete", "complete", "cut off"]
    (run,) = tracker.find({"mempo.trial": "2", "mempo.seed": "2", "mempo.sweep": run_id})
    folder = store.checkpoint_folder(run.run_id, 1)
    checkpoint.write(folder, lambda _: None, {"threads": 1, "metrics": {}, "measured": {}})
    again = trains(good)
    result = sweep(plan, run_id)
    assert result.run_id == run_id
    assert again.began == [("trial 2", 2)] + [(f"trial {n}", s) for n in (3, 4, 5) for s in (1, 2)]
    assert again.resumed == [run.run_id]
    trials = trials_of(tracker, run_id)
    assert [t.point for t in trials] == [t.point for t in whole]
    assert [t.outcome for t in trials] == [t.outcome for t in whole]
    assert len(tracker.find({"mempo.kind": "trial", "mempo.sweep": run_id})) == 6
    assert len(tracker.find({"mempo.kind": "train", "mempo.sweep": run_id})) == 12
    with pytest.raises(ValueError, match="all of that sweep is done"):
        run_to_resume(tracker, plan, run_id)


@pytest.mark.parametrize("place", ["before the run is closed", "before the search is told"])
@pytest.mark.parametrize("ends", ["complete", "failed"])
def test_a_kill_between_the_end_of_a_trial_and_its_record_runs_nothing_twice(
    write, trains, tracker, place, ends
):
    plan = write(("trials: 6", "trials: 4"), ("seeds: [1, 2]", "seeds: [1]"))
    numbers = iter(range(10))
    spoil = {1} if ends == "failed" else set()
    trains(lambda e: RuntimeError("broken") if next(numbers) in spoil else good(e))
    with pytest.MonkeyPatch.context() as patch:
        from tasks.search import Search

        tell, finish = Search.tell, Tracker.finish

        def dies_before_telling(self, number, *rest):
            if number == 1:
                raise Stop
            tell(self, number, *rest)

        def dies_before_closing(self, run_id, status, reason=""):
            info = self.run_info(run_id)
            ours = info.kind == "trial" and info.tags["mempo.trial"] == "1"
            if ours and outcome_of(info).state and status != "KILLED":
                raise Stop
            finish(self, run_id, status, reason)

        if place == "before the search is told":
            patch.setattr(Search, "tell", dies_before_telling)
        else:
            patch.setattr(Tracker, "finish", dies_before_closing)
        run_id = cut_off(plan, tracker)
    (run,) = tracker.find({"mempo.trial": "1", "mempo.kind": "trial", "mempo.sweep": run_id})
    if run.status == "RUNNING":  # as a reap would close it
        tracker.finish(run.run_id, "KILLED")
    again = trains(good)
    result = sweep(plan, run_id)
    assert again.began == [("trial 2", 1), ("trial 3", 1)]
    trials = trials_of(tracker, run_id)
    assert [t.state for t in trials] == ["complete", ends, "complete", "complete"]
    assert trials[1].run.status == ("FAILED" if ends == "failed" else "FINISHED")
    assert len(tracker.find({"mempo.kind": "trial", "mempo.sweep": run_id})) == 4
    assert result.failed == ({"trial 1": "seed 1: RuntimeError: broken"} if spoil else {})


def test_a_failed_run_of_a_trial_that_was_cut_off_stays_failed(write, trains, tracker):
    plan = write(("trials: 6", "trials: 2"), ("seeds: [1, 2]", "seeds: [1]"))
    trains(lambda _: RuntimeError("broken"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_module, "Outcome", lambda *_, **__: (_ for _ in ()).throw(Stop()))
        run_id = cut_off(plan, tracker)
    again = trains(good)
    result = sweep(plan, run_id)
    assert again.began == [("trial 1", 1)]
    assert result.failed == {"trial 0": "seed 1: RuntimeError: broken"}


def test_trials_side_by_side_are_each_run_once(write, trains, tracker):
    plan = write(("method: random", "method: tpe"), overrides=["cluster.parallel=3"])
    stand_in = trains(good)
    result = sweep(plan)
    assert Counter(stand_in.began) == {(f"trial {n}", s): 1 for n in range(6) for s in (1, 2)}
    assert len({str(t.point) for t in trials_of(tracker, result.run_id)}) == 6


def test_a_sweep_whose_database_is_lost_is_not_begun_again(write, trains, tracker, monkeypatch):
    plan = write(("trials: 6", "trials: 3"))
    calls = iter(range(99))
    trains(lambda e: Stop() if next(calls) == 3 else good(e))
    run_id = cut_off(plan, tracker)
    monkeypatch.setattr(
        "tasks.databases.optuna_uri", lambda: f"sqlite:///{store.home() / 'other.db'}"
    )
    with pytest.raises(ValueError, match="knows 2 trials of this sweep, but its database only 0"):
        sweep(plan, run_id)


def test_a_resume_with_other_settings_is_refused_by_name(write, trains, tracker):
    plan = write(("trials: 6", "trials: 2"))
    trains(lambda _: Stop())
    run_id = cut_off(plan, tracker)

    def refused(*changes: tuple[str, str], **options) -> str:
        with pytest.raises(ValueError, match="--resume") as caught:
            run_to_resume(tracker, write(*changes, **options), run_id)
        return str(caught.value)

    two = ("trials: 6", "trials: 2")
    assert "'trials' was 2 and is 6 now" in refused()
    assert "'seeds' was [1, 2] and is [3] now" in refused(two, seeds=[3])
    assert "setting 'loss.clip' was" in refused(two, overrides=["loss.clip=0.3"])
    assert "'space' of 'memory.weight' was [0, 1.0] and is [0, 2.0] now" in refused(
        two, ("[0, 1.0]", "[0, 2.0]")
    )
    assert "'space' of 'learner.lr' was {'low': 0.0001" in refused(two, ("1.0e-2", "1.0e-3"))
    assert "'prune' was False" in refused(two, ("metric:", "prune: true\nmetric:"))
    assert run_to_resume(tracker, write(two, overrides=["cluster.parallel=2"]), run_id) == run_id
    with pytest.raises(ValueError, match="auto: no unfinished run of the sweep 'mine'"):
        run_to_resume(tracker, write(), "auto")
    (child,) = tracker.find({"mempo.kind": "trial"})
    with pytest.raises(ValueError, match="a run of kind 'trial', no sweep; give the sweep's own"):
        run_to_resume(tracker, plan, child.run_id)


def test_the_report_of_a_sweep_needs_mlflow_alone(
    write, trains, tracker, tmp_path, monkeypatch, page
):
    plan = write(("metric:", "prune: true\nmetric:"), ("trials: 6", "trials: 9"))
    bad = iter(range(99))
    trains(lambda e: nan if next(bad) == 2 else good(e), curve=(0.5, 0.9))
    result = sweep(plan)
    monkeypatch.setattr("tasks.databases.optuna_uri", lambda: 1 / 0)
    file, table = report_runs(tracker, [result.run_id], tmp_path)
    html = file.read_text()
    first, second = ranked(trials_of(tracker, result.run_id))[:2]
    assert table == result.table
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


def test_a_sweep_that_is_not_done_is_reported_as_far_as_it_is(write, trains, tracker, tmp_path):
    calls = iter(range(99))
    trains(lambda e: Stop() if next(calls) == 4 else good(e))
    run_id = cut_off(write(), tracker)
    _, table = report_runs(tracker, [run_id], tmp_path)
    assert "mine: 3 trials: 2 complete, 1 cut off" in table
    assert "The best over the runner-up" in table


def test_what_the_command_prints_and_its_exit_status(write, trains, monkeypatch, capsys, page):
    from contextlib import nullcontext

    import typer

    from flows import commands_sweep, run

    monkeypatch.setattr(run, "services", lambda experiment: nullcontext())
    plan = write(("trials: 6", "trials: 3"))
    calls = iter(range(99))
    trains(lambda e: nan if next(calls) == 0 else good(e))
    monkeypatch.setattr(commands_sweep, "load_sweep", lambda *_, **__: plan)
    with pytest.raises(typer.Exit) as end:
        commands_sweep.sweep("mine.yaml")
    assert end.value.exit_code == 1
    shown = capsys.readouterr()
    assert "<- best" in shown.out and f"FAILED  trial 0: seed 1: {METRIC} is nan" in shown.out
    assert "mempo train --preset " in shown.out and "best.yaml" in shown.out
    assert "1 of 3 trials failed" in shown.err
    assert "trial 0: failed: seed 1" in shown.err and "1 of 3 trials are over" in shown.err
    trains(good)
    commands_sweep.sweep("mine.yaml")  # all is well: status 0
    commands_sweep.sweep("mine.yaml", show=True)
    assert "3 trials (random), 1 at a time" in capsys.readouterr().out


def test_a_plan_says_all_that_decides(write):
    plan = write()
    told = plan_of(plan)
    assert told["settings"]["loss.clip"] == plan.first.loss.clip
    assert not {"learner.lr", "memory.weight", "seed", "cluster.cpus"} & set(told["settings"])
    other = replace(plan, description="other")
    assert plan_tags(other) == plan_tags(plan) and difference(told, plan_of(other)) == ""
