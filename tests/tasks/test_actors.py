"""The models' homes as plain objects: what an iteration measures is what its file says."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from conf.load import load
from tasks.actors import Metrics
from tasks.learner_actors import Learner
from tasks.sampler_actor import Sampler

QUALITY = {
    "memory/p_answer", "memory/p_answer_step1", "memory/p_answer_step2", "memory/tokens",
    "memory/tokens_last", "memory/weight", "memory/facts_kept_frac", "memory/facts_held_frac",
}  # fmt: skip


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Metrics]:
    """The shipped policy's rollouts of two questions, and their metrics."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.parquet"
    return path, Sampler(experiment(), threads=1).rollout(path, 0)


def experiment(*overrides: str):
    small = ("rollout.questions=2", "rollout.group_size=4", "environment.objectives=[2]")
    return load("demo", overrides=[*small, "iterations=3", *overrides])


def score(path: Path, iteration: int, *overrides: str) -> tuple[pd.DataFrame, Metrics]:
    metrics = Learner(experiment(*overrides), threads=1).score(path, iteration)
    return pd.read_parquet(path), metrics


def test_memory_quality_is_measured_in_every_iteration(sampled: tuple[Path, Metrics]) -> None:
    path, rolled = sampled
    table, scored = score(path, 1)
    metrics = rolled | scored
    assert metrics.keys() >= QUALITY
    assert all(0 <= metrics[name] <= 1 for name in QUALITY if "tokens" not in name)
    assert metrics["memory/p_answer"] == pytest.approx(table["p_answer_mem"].mean())
    first = table.loc[table["step"] == 0, "p_answer_mem"]
    assert metrics["memory/p_answer_step1"] == pytest.approx(first.mean())
    assert math.isnan(metrics["memory/p_full"])  # watched in iterations 0, 8, ...
    assert "memory/beats_history_frac" not in metrics and "reward/gain_bonus" not in metrics
    table, metrics = score(path, 0)
    both = table.dropna(subset=["p_answer_mem", "p_answer_full"])
    assert len(both) > 0
    share = (both["p_answer_mem"] > both["p_answer_full"]).mean()
    assert metrics["memory/beats_history_frac"] == pytest.approx(share)


def test_the_gain_bonus_stands_beside_the_task_reward(sampled: tuple[Path, Metrics]) -> None:
    path, _ = sampled
    before = pd.read_parquet(path)["reward"]
    table, metrics = score(path, 1, "memory.weight=0", "memory.gain_bonus=0.5")
    assert table["reward"].equals(before)
    bonus = {}
    for key, steps in table.groupby(["question_id", "rollout"]):
        p = steps["p_answer_mem"].dropna()
        bonus[key] = 0.5 * (p.iloc[-1] - p.iloc[0]) if len(p) else 0.0
        assert steps["gain_bonus"].tolist() == pytest.approx([bonus[key]] * len(steps))
    assert metrics["reward/gain_bonus"] == pytest.approx(sum(bonus.values()) / 8)
    assert any(bonus.values()) and not table["adv_mem"].any()


def test_the_weight_of_an_iteration_is_logged(sampled: tuple[Path, Metrics]) -> None:
    path, _ = sampled
    annealed = ("memory.schedule=linear", "memory.final_weight=0.5")
    assert [score(path, i, *annealed)[1]["memory/weight"] for i in range(3)] == [1, 0.75, 0.5]
    assert "memory/weight" not in score(path, 0, "agent.kind=react")[1]


@pytest.mark.parametrize("loss", ["loss.kl=0.1", "loss.policy=dpo"])
def test_only_a_learner_that_trains_keeps_the_start_policy(loss: str) -> None:
    assert Learner(experiment(loss), threads=1).learner.reference is not None
    assert Learner(experiment(loss, "iterations=0"), threads=1).learner.reference is None
