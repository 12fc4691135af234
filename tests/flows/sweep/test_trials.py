"""Trials of a sweep and how they end: real Prefect, MLflow and Optuna; training is a stand-in."""

from __future__ import annotations

from collections import Counter
from math import inf, nan
from pathlib import Path

import pandas as pd
import pytest

from conf.load import load, sha256
from flows.report import report_runs
from flows.sweep import sweep
from flows.sweep_plan import ranked, trials_of
from tasks import store

# Prefect, Ray and MLflow warn in ways that are theirs.
pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("default")]

METRIC = "eval/n1/f1"
ONE_SEED = ("seeds: [1, 2]", "seeds: [1]")


def test_trials_are_runs_with_a_run_for_each_seed_and_the_best_is_a_preset(
    good, write, trains, tracker
):
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


def test_a_trial_without_a_finite_value_never_wins_and_stops_no_other(
    good, write, trains, tracker, page
):
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


def test_a_sweep_without_any_value_fails(states, write, trains, tracker):
    trains(lambda _: nan)
    with pytest.raises(RuntimeError, match=f"none of the 2 trials .* trial 0: seed 1: {METRIC}"):
        sweep(write(("trials: 6", "trials: 2")))
    (run,) = tracker.find({"mempo.kind": "sweep"})
    assert run.status == "FAILED" and states(run.run_id) == ["failed", "failed"]
    _, table = report_runs(tracker, [run.run_id], store.home() / "lost")
    assert "2 trials: 2 failed" in table and "No trial has a value yet" in table


def test_a_poor_trial_is_stopped_with_its_first_seed_and_has_no_value(good, write, trains, tracker):
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
    assert result.failed == {}


def test_a_grid_measures_each_point_once(good, write, trains, tracker):
    plan = write(
        ONE_SEED,
        ("method: random\ntrials: 6", "method: grid"),
        ("{low: 1.0e-4, high: 1.0e-2, log: true}", "[1.0e-3, 2.0e-3, 3.0e-3]"),
        overrides=["cluster.parallel=3"],
    )
    trains(good)
    result = sweep(plan)
    points = [t.point for t in trials_of(tracker, result.run_id)]
    assert points == list(plan.grid) and len(points) == 6


def test_settings_that_do_not_go_together_fail_as_a_trial(states, write, trains, tracker):
    plan = write(
        ONE_SEED,
        ("learner.lr: {low: 1.0e-4, high: 1.0e-2, log: true}", "memory.group: [question, step]"),
        ("memory.weight: [0, 1.0]", "rollout.group_size: [4, 1]"),
    )
    trains(lambda e: 0.5)
    result = sweep(plan)
    trials = trials_of(tracker, result.run_id)
    alone = [t for t in trials if list(t.point.values()) == ["step", 1]]
    assert alone and result.failed == {t.name: t.outcome.reason for t in alone}
    assert all("alone in its group" in t.outcome.reason for t in alone)
    assert states(result.run_id).count("complete") == 6 - len(alone)


def test_trials_side_by_side_are_each_run_once(good, write, trains, tracker):
    plan = write(ONE_SEED, ("method: random", "method: tpe"), overrides=["cluster.parallel=3"])
    stand_in = trains(good)
    result = sweep(plan)
    assert Counter(stand_in.began) == {(f"trial {n}", 1): 1 for n in range(6)}
    assert len({str(t.point) for t in trials_of(tracker, result.run_id)}) == 6
