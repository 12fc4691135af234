"""A memory reward of one's own: hand-computed advantages, what it is given, what is left out."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo.config import Memory
from mempo.credit.assign import assign_credit, memory_rewards
from mempo.credit.schedule import scoring
from mempo.policies.codec import Codec
from mempo.types import Row, Step, Trajectory

MODULE = """
import numpy as np
asked = []

def position(question, steps, p_mem_S, p_full_S):
    asked.append((question.id, len(steps), p_mem_S.copy(), p_full_S.copy()))
    return 1.0 + np.arange(len(steps))

def ratio(question, steps, p_mem_S, p_full_S):
    return p_mem_S / p_full_S

def short(question, steps, p_mem_S, p_full_S):
    return [0.0] * (len(steps) - 1)

def fails(question, steps, p_mem_S, p_full_S):
    return question.answers[7]
"""
PATH = "own_memory_rewards"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[Any]]:
    """asked(): what `position` was asked in this test."""
    import sys

    (tmp_path / f"{PATH}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PATH, raising=False)
    return lambda: sys.modules[PATH].asked if PATH in sys.modules else []


@pytest.fixture
def rollouts(
    codec: Codec, write_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> list[Trajectory]:
    """Three steps, the second without a memory; one step of a sibling with a longer memory."""
    call = "<think>t</think><tool_call>q</tool_call>"
    long = "Paris lies on the river that flows there"
    steps = [write_step(codec, f"<mem>a</mem>{call}"), write_step(codec, call)]
    steps.append(write_step(codec, f"<mem>b</mem>{call}"))
    other = [write_step(codec, f"<mem>{long}</mem>{call}")]
    return [make_trajectory(steps, reward=1.0), make_trajectory(other, rollout=1, reward=0.0)]


def half(rows: list[Row]) -> list[np.ndarray]:
    """Probability 1/2 of everything."""
    return [np.full(row.targets, np.log(0.5)) for row in rows]


def test_its_values_are_r_m_and_steps_without_a_memory_have_none(
    codec: Codec, rollouts: list[Trajectory], asked: Callable[[], list[Any]]
) -> None:
    settings = Memory(function=f"{PATH}:position", reward="posterior")
    credit = assign_credit(codec, rollouts, half, settings)
    # R^M = 1, none, 3 and 1: mean 5/3, std sqrt(8/9) = .9428
    np.testing.assert_allclose(credit.adv_mem, [-0.7071, 0, 1.4142, -0.7071], atol=1e-4)
    (question, steps, p_mem, p_full), second = asked()
    assert (question, steps, second[1]) == ("q", 3, 1)
    np.testing.assert_allclose(p_mem, [0.5, nan, 0.5])
    np.testing.assert_allclose(p_full, [0.5, nan, 0.5])  # though the reward is a posterior
    by_step = assign_credit(codec, rollouts, half, settings.model_copy(update={"group": "step"}))
    assert by_step.adv_mem == [0, 0, 0, 0]


def test_a_rollout_that_is_left_out_is_not_asked_about(
    codec: Codec, rollouts: list[Trajectory], asked: Callable[[], list[Any]]
) -> None:
    rollouts[0].reward = nan
    assign_credit(codec, rollouts, half, Memory(function=f"{PATH}:position"))
    assert [steps for _, steps, _, _ in asked()] == [1]
    rollouts[0].reward = 1.0
    only = Memory(function=f"{PATH}:position", only_success=True)
    credit = assign_credit(codec, rollouts, half, only)  # none has succeeded
    assert credit.adv_mem == [0.0] * 4 and len(asked()) == 1
    assign_credit(codec, rollouts, half, Memory(function=f"{PATH}:position", weight=0))
    assert len(asked()) == 1  # plain GRPO has no memory reward


def test_a_trajectory_without_a_step_is_not_asked_about(
    make_trajectory: Callable[..., Trajectory], asked: Callable[[], list[Any]]
) -> None:
    settings = Memory(function=f"{PATH}:position")
    assert memory_rewards(make_trajectory([]), [], settings) == []
    assert asked() == []


def test_the_length_cost_is_subtracted_from_it(rollouts: list[Trajectory]) -> None:
    [(start, end)] = rollouts[1].steps[0].mem_spans
    settings = Memory(function=f"{PATH}:ratio", length_cost=2.0)
    [reward] = memory_rewards(rollouts[1], [(0.6, 0.2)], settings)
    assert reward == pytest.approx(3.0 - 2.0 * (end - start) / 100)


def test_p_full_is_scored_in_every_iteration_that_needs_it() -> None:
    own = Memory(function="m:f", reward="posterior", full_every=0)
    assert [scoring(own, i).history for i in range(3)] == [True] * 3
    watched = own.model_copy(update={"weight": 0.0})
    assert [scoring(watched, i).history for i in range(3)] == [False] * 3


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("short", "returned 2 values on question q, rollout 0; return 3"),
        ("fails", "failed on question q, rollout 0 (IndexError"),
    ],
)
def test_one_that_fails_names_function_question_and_rollout(
    codec: Codec, rollouts: list[Trajectory], name: str, part: str
) -> None:
    settings = Memory(function=f"{PATH}:{name}")
    with pytest.raises(ValueError, match=rf"^memory\.function: {PATH}:{name} ") as caught:
        assign_credit(codec, rollouts, half, settings)
    assert part in str(caught.value)
