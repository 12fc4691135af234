"""The actors' classes without Ray: what they make of a rollout and its rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.load import load
from mempo.records import read_rollouts, write_rollouts
from tasks.learner_actors import Learner
from tasks.sampler_actor import Sampler

# A fresh policy writes noise: every reward is 0, and no group ever has a signal.
SETTINGS = ["environment.objectives=[1]", "rollout.max_step_tokens=8"]


def rollout(path: Path, *overrides: str) -> tuple[dict[str, float], list[str]]:
    """Metrics and question ids of iteration 3."""
    sampler = Sampler(load("test", overrides=[*SETTINGS, *overrides]), threads=1)
    metrics = sampler.rollout(path, 3)
    return metrics, [t.question.id for t in read_rollouts(path)[0]]


def generated(path: Path) -> int:
    return sum(len(s.output_ids) for t in read_rollouts(path)[0] for s in t.steps)


def test_fault_27_resampling_is_bounded_counted_and_paid_for(tmp_path: Path) -> None:
    results = [rollout(tmp_path / f"{n}.parquet", f"rollout.resample={n}") for n in range(3)]
    assert [len(kept) for _, kept in results] == [4, 4, 4]
    assert len({question for _, kept in results for question in kept}) == 6  # fresh each round
    shares = [metrics["group/resampled_frac"] for metrics, _ in results]
    assert shares == pytest.approx([0, 2 / 4, 4 / 6])
    # with n rounds the file holds round n, and everything before it was thrown away
    tokens = [generated(tmp_path / f"{n}.parquet") for n in range(3)]
    assert [m["cost/generated_tokens"] for m, _ in results] == [
        sum(tokens[: n + 1]) for n in range(3)
    ]


def test_resampled_questions_follow_from_seed_iteration_and_round(tmp_path: Path) -> None:
    def asked(name: str, rounds: int, seed: int) -> list[str]:
        overrides = [f"rollout.resample={rounds}", f"seed={seed}"]
        return rollout(tmp_path / f"{name}.parquet", *overrides)[1]

    once = asked("once", 1, 0)
    assert once == asked("again", 1, 0)
    assert once != asked("further", 2, 0) and once != asked("other", 1, 1)
    assert all(question.startswith("atlas-1-") for question in once)  # as many objectives


@pytest.mark.parametrize(("scale", "expected"), [("std", [1, -1]), ("none", [0.5, -0.5])])
def test_scores_are_scaled_as_the_settings_say(
    tmp_path: Path, scale: str, expected: list[float]
) -> None:
    path = tmp_path / "rollouts.parquet"
    rollout(path)
    trajectories, _ = read_rollouts(path)
    for t in trajectories:
        t.reward = float(t.rollout == 0)
    write_rollouts(path, trajectories)
    learner = Learner(load("test", overrides=[*SETTINGS, f"reward.scale={scale}"]), threads=1)
    assert learner.score(path, 3)["group/zero_std_frac"] == 0
    _, credit = read_rollouts(path)
    of_steps = [expected[t.rollout] for t in trajectories for _ in t.steps]
    assert credit["adv_traj"] == of_steps
