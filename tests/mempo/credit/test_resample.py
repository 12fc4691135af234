"""Dynamic sampling: who is replaced, by whom, and that it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.credit.resample import has_pair, has_signal, resample
from mempo.records import groups
from mempo.types import Question, Step, Trajectory


def trajectories(rewards: dict[str, list[float]]) -> list[Trajectory]:
    return [
        Trajectory(Question(q, "Where?", 1, [["Paris"]]), i, [], "answered", reward=r)
        for q, values in rewards.items()
        for i, r in enumerate(values)
    ]


class World:
    """Question `r-i` is the i-th of round r; `rewards` says what its two rollouts earn, else 0."""

    def __init__(self, rewards: dict[str, list[float]] | None = None):
        self.rewards = rewards or {}
        self.drawn: list[tuple[int, int]] = []
        self.ran: list[list[str]] = []

    def draw(self, number: int, flat: list[int]) -> list[Question]:
        count = len(flat)
        self.drawn.append((number, count))
        return [Question(f"{number}-{i}", "Where?", 1, [["Paris"]]) for i in range(count)]

    def run(self, questions: Sequence[Question]) -> list[Trajectory]:
        self.ran.append([q.id for q in questions])
        return trajectories({q.id: self.rewards.get(q.id, [0, 0]) for q in questions})


def ids(kept: Sequence[Trajectory]) -> list[str]:
    return [g[0].question.id for g in groups(kept)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([0, 1], True), ([0.7] * 3, False), ([1], False), ([0, nan], False), ([nan, 1, 2], True)],
)
def test_a_signal_is_a_difference_of_rewards(rewards: list[float], expected: bool) -> None:
    assert has_signal(trajectories({"q": rewards})) is expected


def test_flat_groups_are_replaced_in_their_place_until_all_have_a_signal() -> None:
    first = trajectories({"a": [1, 1], "b": [0, 1], "c": [0, 0]})
    world = World({"0-1": [0, 1], "1-0": [1, 0]})
    kept, thrown = resample(first, world.draw, world.run, rounds=5)
    # round 0 replaces a by 0-0 (flat) and c by 0-1; round 1 replaces 0-0 by 1-0
    assert ids(kept) == ["1-0", "b", "0-1"]
    assert [t.reward for t in kept] == [1, 0, 0, 1, 0, 1]
    assert ids(thrown) == ["a", "c", "0-0"] and len(thrown) == 6
    assert world.drawn == [(0, 2), (1, 1)]


def test_fault_27_without_any_signal_it_ends_and_goes_on_with_what_there_is() -> None:
    world = World()
    kept, thrown = resample(
        trajectories({"a": [1, 1], "b": [0, 0]}), world.draw, world.run, rounds=3
    )
    assert world.drawn == [(0, 2), (1, 2), (2, 2)]
    assert ids(kept) == ["2-0", "2-1"] and len(thrown) == 12
    assert not any(has_signal(g) for g in groups(kept))


def test_no_rounds_change_nothing() -> None:
    world, first = World(), trajectories({"a": [1, 1], "b": [0, 1]})
    assert resample(first, world.draw, world.run, rounds=0) == (first, [])
    assert world.drawn == []


def test_a_question_that_was_asked_already_is_no_replacement() -> None:
    """A small split deals old questions again; two groups of one question would become one."""

    def draw(number: int, flat: list[int]) -> list[Question]:
        pool = [["b", "a"], ["b", "new"]][number]
        return [Question(q, "Where?", 1, [["Paris"]]) for q in pool[: len(flat)]]

    world = World({"new": [0, 1]})
    first = trajectories({"a": [1, 1], "b": [0, 1], "c": [0, 0]})
    kept, thrown = resample(first, draw, world.run, rounds=2)
    assert world.ran == [["new"]]  # nothing in round 0, one of two in round 1
    assert ids(kept) == ["new", "b", "c"] and ids(thrown) == ["a"]


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=4), min_size=1, max_size=6),
    st.integers(0, 4),
    st.sets(st.text("01234-", min_size=3, max_size=3)),
)
def test_groups_with_a_signal_stay_and_their_number_too(
    rewards: list[list[int]], rounds: int, lucky: set[str]
) -> None:
    first = trajectories({f"q{i}": [float(r) for r in v] for i, v in enumerate(rewards)})
    world = World({name: [0, 1] for name in lucky})
    kept, thrown = resample(first, world.draw, world.run, rounds=rounds)
    assert len(world.drawn) <= rounds
    assert len(groups(kept)) == len(rewards)
    assert not any(has_signal(g) for g in groups(thrown))
    good = [g[0].question.id for g in groups(first) if has_signal(g)]
    assert [i for i in ids(kept) if i in good] == good
    total = len(first) + 2 * sum(count for _, count in world.drawn)
    assert len(kept) + len(thrown) == total


def test_under_dpo_a_signal_is_a_pair(
    make_step: Callable[..., Step],
    make_trajectory: Callable[..., Trajectory],
    make_question: Callable[..., Question],
) -> None:
    def group(id: str, *ends: tuple[float, float, int]) -> list[Trajectory]:
        """(reward, em, queries) a rollout."""
        return [
            make_trajectory(
                [make_step(action="query")] * queries + [make_step()],
                question=make_question(id=id),
                rollout=n,
                reward=reward,
                em=em,
                format=1.0,
            )
            for n, (reward, em, queries) in enumerate(ends)
        ]

    failed = group("a", (0.5, 0, 0), (0.1, 0, 0))  # rewards differ, nobody is an example
    equal = group("b", (1.0, 1, 2), (1.0, 1, 0))  # rewards are equal, one asked less
    assert has_signal(failed) and not has_pair(failed)
    assert has_pair(equal) and not has_signal(equal)
    world = World()
    kept, _ = resample([*failed, *equal], world.draw, world.run, rounds=1, signal=has_pair)
    assert ids(kept) == ["0-0", "b"]
