"""Sweeps of a test's own, in a real Prefect, MLflow and Optuna; training runs are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.sweep import Sweep, load_sweep
from flows import trial as trial_module
from flows.recording import RunResult, recorded
from flows.sweep import sweep
from flows.sweep_plan import run_to_resume, trials_of
from flows.watching import Pruned, current_watch
from tasks.tracking import Tracker

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


@pytest.fixture(scope="session")
def good() -> Callable[..., float]:
    """F1 of an experiment: larger for a larger learning rate and weight; seed 2 a little better."""
    return lambda experiment: (
        50 * experiment.learner.lr + 0.1 * experiment.memory.weight + 0.01 * experiment.seed
    )


@pytest.fixture
def states(tracker: Tracker) -> Callable[[str], list[str]]:
    """How the trials of a sweep's run ended."""
    return lambda run_id: [trial.state for trial in trials_of(tracker, run_id)]


@pytest.fixture
def cut_off(tracker: Tracker) -> Callable[[Sweep], str]:
    """cut_off(plan): the run of a sweep that ends by a KeyboardInterrupt, as it were a kill.

    Nothing above it in the sweep handles one.
    """

    def cut_off(plan: Sweep) -> str:
        with pytest.raises(KeyboardInterrupt):
            sweep(plan)
        return run_to_resume(tracker, plan, "auto")

    return cut_off
