"""A training run that is watched, and stopped by its watch: real Prefect, Ray and MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.load import load
from flows.resuming import last_checkpoint
from flows.train import train
from flows.watching import Pruned, current_watch, watched
from tasks.tracking import Tracker

pytestmark = [
    pytest.mark.services,
    pytest.mark.filterwarnings("default"),  # Prefect, Ray and MLflow warn in ways that are theirs
]

KEY = "eval/n1/f1"
SETTINGS = ["iterations=3", "evaluate.every=1", "evaluate.before=false", "evaluate.sampled=false"]
SETTINGS += ["evaluate.objectives=[1]", "cluster.cpus=2", "tracking.traces=0"]


def test_a_watch_is_seen_inside_its_block_alone():
    def watch(iteration, measured):
        pass

    assert current_watch() is None
    with watched(watch):
        assert current_watch() is watch
        with watched(None):
            assert current_watch() is None
        assert current_watch() is watch
    assert current_watch() is None


def test_a_run_that_its_watch_stops_ends_well_and_after_a_resume_it_is_asked_again(home: Path):
    seen: list[tuple[int, float]] = []

    def stop(iteration, measured):
        seen.append((iteration, measured[KEY]))
        if iteration == 2:
            raise Pruned(iteration)

    experiment = load("test", overrides=SETTINGS, seed=3)
    with watched(stop):
        result = train(experiment, parent="0" * 32)  # of some sweep: it writes no page
    assert result.pruned == 2 and [iteration for iteration, _ in seen] == [1, 2]
    tracker = Tracker()
    run = tracker.run_info(result.run_id)
    assert run.status == "FINISHED" and run.tags["mempo.pruned"] == "2"
    points = [p.step for p in tracker.metric_history(result.run_id, "reward/mean")]
    assert points == [1, 2]  # the iteration after which it was stopped is whole
    begun = last_checkpoint(result.run_id)
    assert begun is not None and begun.iteration == 2

    again: list[tuple[int, float]] = []

    def look(iteration, measured):
        again.append((iteration, measured[KEY]))

    with watched(look):
        result = train(experiment, parent="0" * 32, resume=result.run_id)
    assert again == seen[1:]  # of the checkpoint, and never of the end
    assert result.pruned == 0 and result.metrics is not None and result.metrics[KEY] >= 0
