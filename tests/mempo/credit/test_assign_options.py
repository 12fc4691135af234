"""Options of the memory advantage by hand, and what must hold for any rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import Memory
from mempo.credit.assign import Credit, assign_credit, gain
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step, Trajectory

POSTERIOR: dict[str, Any] = {"reward": "posterior", "group": "question"}


class Lab:
    """Rollouts whose memories have a chosen P(answer | memory), and their credit."""

    def __init__(
        self,
        atlas: AtlasWorld,
        codec: Codec,
        make_question: Callable[..., Question],
        write_step: Callable[..., Step],
        make_trajectory: Callable[..., Trajectory],
    ) -> None:
        self.words, self.codec = list(atlas.words()), codec
        self.opening, self.separator = codec.encode("<mem>")[0], codec.encode(";")[0]
        self.question = make_question([[self.words[0]]])
        self.write_step, self.make_trajectory = write_step, make_trajectory

    def rollout(self, worth: Sequence[int | None], length: int = 1, **fields: Any) -> Trajectory:
        """A step for each number: P(answer | memory) in eighths, None for a step without one.

        A memory is one word that stands for its worth and `length` - 1 separators.
        """
        steps = []
        for eighths in worth:
            words = [] if eighths is None else [self.words[1 + eighths], *[";"] * (length - 1)]
            memory = f"<mem>{' '.join(words)}</mem>" if words else ""
            text = f"{memory}<think>next</think><tool_call>done</tool_call>"
            steps.append(self.write_step(self.codec, text, self.words[0]))
        return self.make_trajectory(steps, question=self.question, **fields)

    def logprobs(self, rows: list[Row]) -> list[np.ndarray]:
        """As the memory says; under a history that does not begin with it 1/16."""
        p = {self.codec.encode(self.words[1 + e])[0]: e / 8 for e in range(1, 9)}
        values = []
        for row in rows:
            after_head = row.ids[2 : len(row.ids) - row.targets]
            inside = [i for i in after_head[1:-2] if i != self.separator]
            is_memory = after_head[0] == self.opening and len(inside) == 1
            values.append(p[inside[0]] if is_memory else 1 / 16)
        return [np.full(r.targets, np.log(v)) for r, v in zip(rows, values, strict=True)]

    def credit(self, trajectories: Sequence[Trajectory], **settings: Any) -> Credit:
        made = Memory(**{**POSTERIOR, **settings})
        return assign_credit(self.codec, trajectories, self.logprobs, made)


@pytest.fixture(scope="session")
def lab(
    atlas: AtlasWorld,
    atlas_codec: Codec,
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
    make_trajectory: Callable[..., Trajectory],
) -> Lab:
    return Lab(atlas, atlas_codec, make_question, write_step, make_trajectory)


# --- the gain bonus


def test_the_gain_of_a_trajectory_is_its_last_p_less_its_first() -> None:
    assert gain([0.1, 0.6, 0.4]) == pytest.approx(0.5 - 0.2)  # sum of the steps' gains
    assert gain([nan, 0.25, nan, 0.5, nan]) == 0.25
    assert gain([]) == gain([nan]) == gain([nan, 0.5]) == 0.0


def test_the_gain_bonus_is_added_to_the_task_reward_by_hand(lab: Lab) -> None:
    made = [
        lab.rollout([2, 4, 6], reward=1.0),  # gain 6/8 - 2/8 = .5, bonus 1, together 2
        lab.rollout([4, 4], rollout=1, reward=1.0),  # no gain: 1
        lab.rollout([8, None], rollout=2, reward=0.0),  # one memory, no gain: 0
    ]
    credit = lab.credit(made, gain_bonus=2.0)
    # Rewards 2, 1, 0: mean 1, population std sqrt(2/3)
    np.testing.assert_allclose(
        credit.adv_traj, np.repeat([1.2247, 0, -1.2247], [3, 2, 2]), atol=1e-4
    )
    np.testing.assert_allclose(credit.gain_bonus, [1, 1, 1, 0, 0, 0, 0])
    assert credit.mean_gain_bonus == pytest.approx(1 / 3)
    assert [t.reward for t in made] == [1, 1, 0]  # the task's own reward stays


def test_fault_23_a_lost_memory_costs_no_more_than_doing_nothing(lab: Lab) -> None:
    made = [
        lab.rollout([6, 2], reward=0.0),  # gain -.5: in a wrong format, but it tried
        lab.rollout([None], rollout=1, reward=0.0),  # does nothing
        lab.rollout([2, 6], rollout=2, reward=0.0),  # gain .5, bonus 1
    ]
    credit = lab.credit(made, gain_bonus=2.0)
    np.testing.assert_allclose(credit.gain_bonus, [0, 0, 0, 1, 1])
    # R = 0, 0, 1: mean 1/3, std sqrt(2) / 3.
    low, high = -(0.5**0.5), 2**0.5
    np.testing.assert_allclose(credit.adv_traj, [low, low, low, high, high])


def test_without_a_gain_bonus_only_the_task_is_rewarded(lab: Lab) -> None:
    made = [lab.rollout([2, 6], reward=1.0), lab.rollout([4], rollout=1, reward=0.0)]
    credit = lab.credit(made)
    assert credit.adv_traj == [1, 1, -1]
    assert credit.gain_bonus == [0, 0, 0] and credit.mean_gain_bonus == 0


def test_fault_19_a_gain_gives_equal_rewards_a_signal(lab: Lab) -> None:
    made = [lab.rollout([2, 6], reward=1.0), lab.rollout([4, 4], rollout=1, reward=1.0)]
    assert lab.credit(made).zero_std == 1
    with_bonus = lab.credit(made, gain_bonus=0.1, weight=0)
    assert with_bonus.zero_std == 0
    np.testing.assert_allclose(with_bonus.adv_traj, [1, 1, -1, -1])
    assert with_bonus.adv_mem == [0] * 4


# --- the length cost


def test_the_length_cost_is_a_price_for_100_tokens_by_hand(lab: Lab) -> None:
    """Equal memories of 1 and 3 tokens at 10 for 100: R^M = .5 - .1 and .5 - .3."""
    made = [lab.rollout([4]), lab.rollout([4], length=3, rollout=1)]
    assert [t.steps[0].mem_spans for t in made] == [[(1, 2)], [(1, 4)]]
    assert lab.credit(made).adv_mem == [0, 0]
    np.testing.assert_allclose(lab.credit(made, length_cost=10.0).adv_mem, [1, -1])
    # A memory worth 1/8 more outweighs the .02 of its two more tokens at 1 for 100.
    better = [lab.rollout([4]), lab.rollout([5], length=3, rollout=1)]
    np.testing.assert_allclose(lab.credit(better, length_cost=1.0).adv_mem, [-1, 1])
    np.testing.assert_allclose(lab.credit(better, length_cost=10.0).adv_mem, [1, -1])


# --- successes only


def test_only_successes_have_a_memory_advantage_and_a_part_in_its_mean(lab: Lab) -> None:
    good: dict[str, Any] = {"em": 1.0, "format": 1.0}
    made = [
        lab.rollout([1, 2], **good),
        lab.rollout([3], rollout=1, **good),
        lab.rollout([8], rollout=2, em=0.5, format=1.0),  # one of two objectives
        lab.rollout([8], rollout=3, em=1.0, format=0.0),  # right, but not well formed
    ]
    # Of 1, 2, 3 eighths: mean 2, population std sqrt(2/3); the others would move both.
    np.testing.assert_allclose(
        lab.credit(made, only_success=True).adv_mem, [-1.2247, 0, 1.2247, 0, 0], atol=1e-4
    )
    assert all(lab.credit(made).adv_mem)
    by_step = lab.credit(made, only_success=True, group="step")
    np.testing.assert_allclose(by_step.adv_mem, [-1, 0, 1, 0, 0])
    np.testing.assert_allclose(by_step.p_answer_mem, [0.125, 0.25, 0.375, 1, 1])  # still measured


def test_a_group_without_a_success_has_no_memory_advantage(lab: Lab) -> None:
    made = [lab.rollout([1, 5]), lab.rollout([3], rollout=1)]
    assert lab.credit(made, only_success=True).adv_mem == [0, 0, 0]


# --- what is missing, what is noise


def test_fault_17_memories_of_a_rollout_without_a_reward_do_not_shift_the_group(lab: Lab) -> None:
    rest = [lab.rollout([1, 2], reward=1.0), lab.rollout([3], rollout=2, reward=3.0)]
    bad = lab.rollout([8], rollout=1, reward=nan)
    credit = lab.credit([rest[0], bad, rest[1]], gain_bonus=0.0)
    assert credit.adv_traj == [-1, -1, 0, 1]
    np.testing.assert_allclose(credit.adv_mem, [-1.2247, 0, 0, 1.2247], atol=1e-4)


def test_fault_18_a_contrast_of_equal_probabilities_is_no_signal(lab: Lab) -> None:
    """P(memory) = P(history) = .7 but for the last bits of a float32."""
    made = [lab.rollout([4], reward=1.0), lab.rollout([5], rollout=1, reward=1.0)]
    noise = iter(0.7 + 6e-8 * np.array([0, 1, -1, 2]))

    def noisy(rows: list[Row]) -> list[np.ndarray]:
        return [np.full(r.targets, np.log(next(noise))) for r in rows]

    credit = assign_credit(lab.codec, made, noisy, Memory())
    assert np.ptp(np.subtract(credit.p_answer_mem, credit.p_answer_full)) > 0
    assert credit.adv_mem == [0, 0]


def test_fault_18_a_gain_of_nothing_is_no_signal(lab: Lab) -> None:
    """No reward at all, and P(memory) = .7 of every step but for the last bits of a float32."""
    made = [lab.rollout([1, 2]), lab.rollout([3, 4], rollout=1)]
    noise = iter(0.7 + 6e-8 * np.array([0, 1, 1, 0]))

    def noisy(rows: list[Row]) -> list[np.ndarray]:
        return [np.full(r.targets, np.log(next(noise))) for r in rows]

    settings = Memory(**POSTERIOR, gain_bonus=0.5)
    credit = assign_credit(lab.codec, made, noisy, settings)
    assert credit.gain_bonus[0] > 0 == credit.gain_bonus[2]
    assert credit.adv_traj == [0] * 4 and credit.zero_std == 1


def test_a_history_that_is_only_watched_changes_no_advantage(lab: Lab) -> None:
    made = [lab.rollout([1, 2], reward=1.0), lab.rollout([3], rollout=1)]
    alone = lab.credit(made)
    watched = assign_credit(lab.codec, made, lab.logprobs, Memory(**POSTERIOR), full=True)
    assert np.isnan(alone.p_answer_full).all()
    np.testing.assert_allclose(watched.p_answer_full, [1 / 16] * 3)
    assert (watched.adv_mem, watched.adv_traj) == (alone.adv_mem, alone.adv_traj)


def test_a_weight_to_come_has_advantages_from_the_start(lab: Lab) -> None:
    made = [lab.rollout([1]), lab.rollout([3], rollout=1)]
    assert lab.credit(made, weight=0).adv_mem == [0, 0]
    later = lab.credit(made, weight=0, schedule="linear", final_weight=1)
    np.testing.assert_allclose(later.adv_mem, [-1, 1])


# --- for any rollouts

ROLLOUT = st.tuples(
    st.lists(st.none() | st.integers(1, 8), max_size=4),
    st.sampled_from([0.0, 0.25, 1.0, nan]),
    st.booleans(),
)
GROUP = st.lists(ROLLOUT, min_size=1, max_size=5)
OPTIONS = st.fixed_dictionaries(
    {
        "reward": st.sampled_from(["contrast", "posterior"]),
        "group": st.sampled_from(["question", "step"]),
        "only_success": st.booleans(),
        "length_cost": st.sampled_from([0.0, 2.0]),
        "gain_bonus": st.sampled_from([0.0, 0.5]),
    }
)


def group_of(lab: Lab, rollouts: Sequence[Any], shift: float = 0.0) -> list[Trajectory]:
    return [
        lab.rollout(worth, rollout=i, reward=reward + shift, em=float(good), format=1.0)
        for i, (worth, reward, good) in enumerate(rollouts)
    ]


@given(rollouts=GROUP, options=OPTIONS)
def test_every_step_has_its_credit_and_a_missing_memory_none(
    lab: Lab, rollouts: list[Any], options: dict[str, Any]
) -> None:
    made = group_of(lab, rollouts)
    credit = lab.credit(made, **options)
    steps = [e for worth, _, _ in rollouts for e in worth]
    assert {len(column) for column in credit.columns().values()} == {len(steps)}
    assert np.isfinite([*credit.adv_traj, *credit.adv_mem]).all()
    for eighths, p, advantage in zip(steps, credit.p_answer_mem, credit.adv_mem, strict=True):
        assert (eighths is None) == np.isnan(p)
        assert eighths is not None or advantage == 0
    if options["group"] == "question":
        assert sum(credit.adv_mem) == pytest.approx(0, abs=1e-6)


@given(rollouts=GROUP, options=OPTIONS, shift=st.sampled_from([-8.0, 0.5, 3.0]))
def test_a_constant_added_to_all_rewards_changes_nothing(
    lab: Lab, rollouts: list[Any], options: dict[str, Any], shift: float
) -> None:
    one, two = (lab.credit(group_of(lab, rollouts, s), **options) for s in (0.0, shift))
    np.testing.assert_allclose(one.adv_traj, two.adv_traj, atol=1e-9)
    assert (one.adv_mem, one.gain_bonus, one.zero_std) == (
        two.adv_mem,
        two.gain_bonus,
        two.zero_std,
    )


@given(rollouts=GROUP, options=OPTIONS, data=st.data())
def test_the_order_of_rollouts_changes_nothing_but_the_order(
    lab: Lab, rollouts: list[Any], options: dict[str, Any], data: st.DataObject
) -> None:
    made = group_of(lab, rollouts)
    order = data.draw(st.permutations(range(len(made))))

    def by_rollout(trajectories: Sequence[Trajectory]) -> dict[int, np.ndarray]:
        credit = lab.credit(trajectories, **options)
        table = np.array([credit.adv_traj, credit.adv_mem, credit.gain_bonus])
        ends = np.cumsum([len(t.steps) for t in trajectories])[:-1]
        return dict(
            zip([t.rollout for t in trajectories], np.split(table, ends, axis=1), strict=True)
        )

    one, two = by_rollout(made), by_rollout([made[i] for i in order])
    for rollout, table in one.items():
        np.testing.assert_allclose(two[rollout], table, atol=1e-9)


@given(rollouts=GROUP, options=OPTIONS)
def test_another_question_in_the_batch_changes_nothing(
    lab: Lab, make_question: Callable[..., Question], rollouts: list[Any], options: dict[str, Any]
) -> None:
    made = group_of(lab, rollouts)
    other = lab.rollout([8, 1], reward=1.0)
    other.question = make_question([[lab.words[0]]], id="other")
    alone, beside = lab.credit(made, **options), lab.credit([*made, other], **options)
    assert beside.adv_traj[:-2] == alone.adv_traj and beside.adv_mem[:-2] == alone.adv_mem
