"""Memory quality by hand: what memories are worth, which facts they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.atlas import AtlasWorld, facts_of
from mempo.evaluation.memory_quality import fact_quality, scored_quality
from mempo.types import Question, Step, Trajectory

Make = Callable[..., Trajectory]
FACTS = ["age bob one two", "job ann three four"]


def test_p_answer_is_a_mean_of_all_memories_and_of_each_step_index(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    made = [make_trajectory([make_step()] * n, rollout=n) for n in (3, 0, 2)]
    got = scored_quality(made, [0.1, nan, 0.5, 0.3, nan], [0.2, nan, 0.4, 0.3, nan])
    expected = {
        "memory/p_answer": 0.3,  # (.1 + .5 + .3) / 3
        "memory/p_full": 0.3,
        "memory/p_answer_step1": 0.2,  # (.1 + .3) / 2; nothing is known of step 2
        "memory/p_answer_step3": 0.5,
        "memory/beats_history_frac": 1 / 3,  # .1 < .2, .5 > .4, .3 = .3
    }
    assert got == pytest.approx(expected)


def test_histories_that_are_not_scored_beat_nothing(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    got = scored_quality([make_trajectory([make_step()] * 2)], [0.1, 0.2], [nan, 0.1])
    assert got["memory/beats_history_frac"] == 1.0  # of the one that is known
    got = scored_quality([make_trajectory([make_step()] * 2)], [0.1, 0.2], [nan, nan])
    assert set(got) == {
        "memory/p_answer", "memory/p_full", "memory/p_answer_step1", "memory/p_answer_step2"
    }  # fmt: skip
    assert isnan(got["memory/p_full"])


def test_nothing_scored_leaves_two_missing_numbers(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    for made, p in (([], []), ([make_trajectory([make_step()])], [nan])):
        got = scored_quality(made, p, p)
        assert set(got) == {"memory/p_answer", "memory/p_full"}
        assert all(isnan(v) for v in got.values())


def test_steps_beyond_the_sixteenth_have_no_metric_of_their_own(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    got = scored_quality([make_trajectory([make_step()] * 20)], [0.5] * 20, [nan] * 20)
    assert sum(name.startswith("memory/p_answer_step") for name in got) == 16
    assert "memory/p_answer_step16" in got


def remembered(
    make_step: Callable[..., Step], make_trajectory: Make,
    steps: Sequence[tuple[str | None, str]],
) -> Trajectory:  # fmt: skip
    """A trajectory of (memory, reply) steps."""
    return make_trajectory([make_step(memory=m, observation=o) for m, o in steps])


def test_facts_kept_and_held_by_hand(make_step: Callable[..., Step], make_trajectory: Make) -> None:
    bob, ann = FACTS
    steps = [
        ("nothing", f"pet tim five six ; {bob}"),
        (bob, f"{ann} ; job tim three four"),
        (f"{bob} ; {ann}", ""),
        (ann, ""),
    ]
    got = fact_quality([remembered(make_step, make_trajectory, steps)], lambda q: FACTS)
    # Kept: none to keep, bob kept, of bob and ann only ann: 2 of 3.
    # Held: nothing shown yet, bob of bob, both of both, one of both: 4 of 5.
    assert got == {"memory/facts_kept_frac": 2 / 3, "memory/facts_held_frac": 4 / 5}


def test_steps_are_pooled_over_trajectories(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    bob, ann = FACTS
    made = [
        remembered(make_step, make_trajectory, [("", bob), (bob, ""), (bob, ""), (bob, "")]),
        remembered(make_step, make_trajectory, [("", ann), ("nothing", "")]),
        remembered(make_step, make_trajectory, [(ann, ""), ("nothing", "")]),
    ]
    got = fact_quality(made, lambda q: FACTS)
    assert got == {"memory/facts_kept_frac": 2 / 3, "memory/facts_held_frac": 3 / 4}


def test_a_step_without_a_memory_is_not_measured(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    bob, _ = FACTS
    steps = [(bob, bob), (None, ""), (bob, "")]
    got = fact_quality([remembered(make_step, make_trajectory, steps)], lambda q: FACTS)
    assert got == {"memory/facts_held_frac": 1.0}  # of the third step; no two memories in a row


def test_a_fact_is_stated_word_for_word(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    bob, _ = FACTS

    def held(memory: str) -> float:
        made = remembered(make_step, make_trajectory, [("", bob), (memory, "")])
        return fact_quality([made], lambda q: FACTS)["memory/facts_held_frac"]

    for right in (bob, f"x;{bob};y", bob.replace(" ", "\n  "), f"({bob})."):
        assert held(right) == 1.0, right
    for wrong in (
        "age bob one", "age bob one twofold", "page bob one two", "age bob two one",
        "age bob one ; two", "Age Bob one two", "",
    ):  # fmt: skip
        assert held(wrong) == 0.0, wrong


def test_a_world_that_knows_no_facts_measures_none(
    make_step: Callable[..., Step], make_trajectory: Make, make_question: Callable[..., Question]
) -> None:
    made = remembered(make_step, make_trajectory, [("Paris", "Paris"), ("Paris", "")])
    assert facts_of(made.question) == []
    assert fact_quality([made], facts_of) == {}
    assert fact_quality([], facts_of) == {}


@given(kept=st.lists(st.booleans(), min_size=1, max_size=6), key=st.integers(0, 10**6))
def test_the_atlas_knows_its_facts_in_replies_and_memories(
    atlas: AtlasWorld, make_step: Callable[..., Step], make_trajectory: Make,
    kept: list[bool], key: int,
) -> None:  # fmt: skip
    """All facts are looked up, and the last memory keeps those that are drawn."""
    [question] = atlas.questions("train", 1, objectives=len(kept), key=(key,))
    facts = facts_of(question)
    assert facts == question.gold.split("; ")
    replies = atlas.reply([question] * len(kept), list(question.parts))
    looked_up = [make_step(observation=str(r)) for r in replies]
    whole = make_step(memory=" ; ".join(facts))
    last = make_step(memory=" ; ".join(f for f, k in zip(facts, kept, strict=True) if k))
    made = make_trajectory([*looked_up, whole, last], question=question)
    got = fact_quality([made], facts_of)
    assert got["memory/facts_kept_frac"] == sum(kept) / len(kept)
    assert got["memory/facts_held_frac"] == (len(kept) + sum(kept)) / (2 * len(kept))
