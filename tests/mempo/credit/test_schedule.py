"""The weight of A^M over a run, and what is scored when, by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import Experiment, Memory
from mempo.credit.schedule import Scoring, memory_weight, scoring


def weights(iterations: int, **settings: Any) -> list[float]:
    return [memory_weight(Memory(**settings), i, iterations) for i in range(iterations)]


def test_a_constant_weight_stays() -> None:
    assert weights(3, weight=0.7) == [0.7, 0.7, 0.7]


def test_a_linear_weight_takes_equal_steps_from_first_to_last() -> None:
    got = weights(5, weight=2.0, schedule="linear", final_weight=1.0)
    assert got == pytest.approx([2.0, 1.75, 1.5, 1.25, 1.0])
    assert weights(3, weight=0.0, schedule="linear", final_weight=1.0) == [0.0, 0.5, 1.0]


def test_a_cosine_weight_is_slow_at_both_ends() -> None:
    # (1 + cos(0, 45, 90, 135, 180 degrees)) / 2
    got = weights(5, weight=1.0, schedule="cosine")
    assert got == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)


def test_a_single_iteration_is_the_first_and_a_later_one_has_the_last_weight() -> None:
    annealed = Memory(weight=2.0, schedule="linear", final_weight=1.0)
    assert memory_weight(annealed, 0, 1) == memory_weight(annealed, 0, 0) == 2.0
    assert memory_weight(annealed, 9, 5) == 1.0


@given(
    first=st.floats(0, 10), last=st.floats(0, 10), iterations=st.integers(2, 50),
    schedule=st.sampled_from(["linear", "cosine"]),
)  # fmt: skip
def test_a_schedule_goes_one_way_from_the_first_weight_to_the_last(
    first: float, last: float, iterations: int, schedule: str
) -> None:
    got = weights(iterations, weight=first, schedule=schedule, final_weight=last)
    assert got[0] == first and got[-1] == pytest.approx(last, abs=1e-9)
    steps = [b - a for a, b in pairwise(got)]
    direction = 1 if last > first else -1
    assert all(direction * step >= -1e-9 for step in steps)


def scored(iterations: int, **settings: Any) -> tuple[list[int], list[int]]:
    """Iterations in which P(answer | memory), and P(answer | history), are scored."""
    plans = [scoring(Memory(**settings), i) for i in range(iterations)]
    return [i for i, s in enumerate(plans) if s.memory], [
        i for i, s in enumerate(plans) if s.history
    ]


def test_a_contrast_is_scored_always_and_a_posterior_only_watches_the_history() -> None:
    everything = list(range(10))
    assert scored(10) == (everything, everything)
    assert scored(10, reward="posterior") == (everything, [0, 8])
    assert scored(10, reward="posterior", full_every=3) == (everything, [0, 3, 6, 9])
    assert scored(10, reward="posterior", full_every=0) == (everything, [])


def test_without_an_advantage_memories_are_only_watched() -> None:
    assert scored(10, weight=0, score_every=4) == ([0, 4, 8], [0, 8])
    assert scored(10, weight=0, score_every=4, full_every=2) == ([0, 4, 8], [0, 4, 8])
    assert scoring(Memory(weight=0, score_every=2, full_every=0), 2) == Scoring(True, False)


def test_a_gain_bonus_or_a_weight_to_come_is_scored_in_every_iteration() -> None:
    everything = list(range(10))
    assert scored(10, weight=0, gain_bonus=0.5, score_every=4) == (everything, [0, 8])
    annealed = {"weight": 0, "schedule": "linear", "final_weight": 1.0, "score_every": 4}
    assert scored(10, **annealed) == (everything, everything)


def test_a_run_is_mempo_if_memories_have_a_weight_at_any_time() -> None:
    def algorithm(iterations: int = 5, kind: str = "self_memory", **memory: Any) -> str:
        settings = {"iterations": iterations, "agent": {"kind": kind}, "memory": memory}
        return Experiment.model_validate(settings).algorithm

    assert algorithm() == "mempo" and algorithm(weight=0) == "grpo"
    assert algorithm(weight=1, schedule="linear", final_weight=0) == "mempo"
    later = {"weight": 0, "schedule": "cosine", "final_weight": 1}
    assert algorithm(**later) == "mempo"
    assert algorithm(iterations=1, **later) == "grpo"  # its only iteration has weight 0
    assert algorithm(kind="react", **later) == "grpo"
    assert algorithm(weight=0, schedule="constant", final_weight=1) == "grpo"


def test_with_dpo_memories_are_only_watched() -> None:
    settings = {"loss": {"policy": "dpo"}, "memory": {"weight": 2.0, "score_every": 4}}
    memory = Experiment.model_validate(settings).credited_memory
    assert [i for i in range(10) if scoring(memory, i).memory] == [0, 4, 8]
    assert [i for i in range(10) if scoring(memory, i).history] == [0, 8]
    assert memory_weight(memory, 3, 10) == 0.0
    del settings["loss"]
    kept = Experiment.model_validate(settings)
    assert kept.credited_memory == kept.memory
