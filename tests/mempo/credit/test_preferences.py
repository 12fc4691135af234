from __future__ import annotations

from collections.abc import Callable
from math import nan

import pytest

from mempo.credit.preferences import preference_pairs
from mempo.types import Question, Step, Trajectory


@pytest.fixture
def group(
    make_question: Callable[..., Question],
    make_trajectory: Callable[..., Trajectory],
    make_step: Callable[..., Step],
) -> Callable[..., list[Trajectory]]:
    """group(("right", 2), ("wrong", 0), ..., id="q"): how each rollout ended, its queries."""

    def build(*ends: tuple[str, int], id: str = "q") -> list[Trajectory]:
        made = []
        for n, (end, queries) in enumerate(ends):
            steps = [make_step([5], action="query") for _ in range(queries)]
            t = make_trajectory(
                [*steps, make_step([6], action="answer")],
                question=make_question(id=id),
                rollout=n,
                reward={"right": 1.1, "half": 0.6, "wrong": 0.1, "none": nan}[end],
            )
            t.em, t.format = float(end == "right"), float(end != "none")
            made.append(t)
        return made

    return build


def test_right_ones_are_paired_with_the_worst_and_with_one_another(
    group: Callable[..., list[Trajectory]],
) -> None:
    ts = group(("wrong", 1), ("right", 2), ("half", 0), ("right", 1), ("wrong", 0))
    # Right: 3 (1 query), 1 (2 queries). The others from the worst: 0 (wrong, 1), 4 (wrong, 0), 2.
    assert preference_pairs(ts) == [(3, 0), (1, 4), (3, 1)]


def test_of_right_ones_those_that_asked_less_are_preferred(
    group: Callable[..., list[Trajectory]],
) -> None:
    assert preference_pairs(group(("right", 3), ("right", 1))) == [(1, 0)]
    ts = group(*(("right", queries) for queries in (4, 0, 2, 2, 1)))
    assert preference_pairs(ts) == [(1, 0), (4, 3)]  # and the one between them is left over


def test_a_path_that_answered_wrong_is_no_example(group: Callable[..., list[Trajectory]]) -> None:
    assert preference_pairs(group(("half", 0), ("wrong", 0))) == []
    assert preference_pairs(group(("right", 1), ("right", 1))) == []  # neither is better
    assert preference_pairs(group(("right", 1))) == []


def test_pairs_stay_within_a_question(group: Callable[..., list[Trajectory]]) -> None:
    first, second = group(("right", 0), ("right", 0)), group(("wrong", 0), ("wrong", 0), id="r")
    assert preference_pairs([*first, *second]) == []


def test_rollouts_without_a_reward_or_a_step_are_left_out(
    group: Callable[..., list[Trajectory]],
) -> None:
    ts = group(("right", 0), ("none", 0), ("wrong", 0))
    assert preference_pairs(ts) == [(0, 2)]
    ts[2].steps.clear()
    assert preference_pairs(ts) == []
