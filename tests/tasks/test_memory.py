"""Host memory of the actors over many iterations."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from conf.load import load
from tasks.learner_actors import Learner
from tasks.sampler_actor import Sampler


@pytest.mark.slow
def test_fault_38_memory_is_flat_over_twenty_iterations(tmp_path: Path) -> None:
    small = ("rollout.questions=2", "rollout.group_size=4", "environment.objectives=[2]")
    experiment = load("demo", overrides=[*small, "memory.full_every=1", "iterations=30"])
    sampler, learner = Sampler(experiment, threads=1), Learner(experiment, threads=1)
    weights, path = tmp_path / "weights.safetensors", tmp_path / "rollouts.parquet"
    used = []
    for iteration in range(30):
        sampler.rollout(path, iteration)
        learner.score(path, iteration)
        learner.train(path, iteration)
        sampler.load(weights, iteration + 1, learner.publish(weights))
        learner.checkpoint(tmp_path / f"{iteration:06d}", {})
        used.append(psutil.Process(os.getpid()).memory_info().rss / 2**20)
    early, late = min(used[8:14]), min(used[24:])  # MiB; buffers grow to their size at first
    assert late - early < 10, used
