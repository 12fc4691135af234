"""Advantages against hand-computed numbers and naive loops."""

from __future__ import annotations

from math import isfinite, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.credit.advantage import memory_advantage, token_advantages, trajectory_advantage

# Rewards as they occur, on a grid: a std is then either 0 or far above the rounding threshold.
reward = st.one_of(st.integers(-40, 40).map(lambda i: i / 8), st.just(nan))


def naive(values: list[float]) -> list[float]:
    """(x - mean) / population std over the finite values, written as loops."""
    finite = [v for v in values if isfinite(v)]
    if len(finite) < 2:
        return [0.0] * len(values)
    mean = sum(finite) / len(finite)
    std = sqrt(sum((v - mean) ** 2 for v in finite) / len(finite))
    if std < 1e-9:
        return [0.0] * len(values)
    return [(v - mean) / std if isfinite(v) else 0.0 for v in values]


@given(st.lists(reward, max_size=20))
def test_trajectory_advantage_equals_a_naive_loop(rewards: list[float]) -> None:
    np.testing.assert_allclose(trajectory_advantage(rewards), naive(rewards), atol=1e-9)


@given(st.lists(st.lists(reward, max_size=5), max_size=6))
def test_memory_advantage_by_question_equals_a_naive_loop(rewards: list[list[float]]) -> None:
    got = memory_advantage(rewards, "question")
    assert [len(r) for r in got] == [len(r) for r in rewards]
    pooled = naive([r for steps in rewards for r in steps])
    np.testing.assert_allclose([a for steps in got for a in steps], pooled, atol=1e-9)


@given(st.lists(st.lists(reward, max_size=5), max_size=6))
def test_memory_advantage_by_step_equals_a_naive_loop(rewards: list[list[float]]) -> None:
    got = memory_advantage(rewards, "step")
    assert [len(r) for r in got] == [len(r) for r in rewards]
    for t in range(5):
        column = naive([steps[t] for steps in rewards if len(steps) > t])
        np.testing.assert_allclose([s[t] for s in got if len(s) > t], column, atol=1e-9)


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=16), st.floats(0.01, 100), st.integers(-9, 9)
)
def test_advantages_do_not_depend_on_scale_and_offset(
    rewards: list[int], scale: float, offset: int
) -> None:
    moved = [scale * (r + offset) for r in rewards]
    np.testing.assert_allclose(
        trajectory_advantage(moved), trajectory_advantage(rewards), atol=1e-7
    )


def test_one_success_in_four_by_hand() -> None:
    # mean 1/4, population variance 3/16: (1 - 1/4) / (sqrt(3)/4) = sqrt(3), the others -1/sqrt(3)
    np.testing.assert_allclose(
        trajectory_advantage([0, 0, 0, 1]), [-1 / sqrt(3)] * 3 + [sqrt(3)], atol=1e-12
    )


def test_fault_17_a_missing_reward_is_left_out_and_gets_nothing() -> None:
    np.testing.assert_allclose(trajectory_advantage([1, nan, 3]), [-1, 0, 1], atol=1e-12)
    np.testing.assert_array_equal(trajectory_advantage([0.5]), [0])
    np.testing.assert_array_equal(trajectory_advantage([nan, nan]), [0, 0])
    np.testing.assert_array_equal(trajectory_advantage([nan, 2.0]), [0, 0])
    np.testing.assert_allclose(
        memory_advantage([[1, nan], [3]])[0] + memory_advantage([[1, nan], [3]])[1], [-1, 0, 1]
    )


def test_infinite_rewards_count_as_missing() -> None:
    np.testing.assert_allclose(trajectory_advantage([1, np.inf, 3]), [-1, 0, 1], atol=1e-12)


def test_fault_18_equal_rewards_give_exactly_zero() -> None:
    np.testing.assert_array_equal(trajectory_advantage(np.full(8, np.float32(0.7))), np.zeros(8))
    np.testing.assert_array_equal(trajectory_advantage([0.1 + 0.2, 0.3] * 4), np.zeros(8))
    np.testing.assert_array_equal(trajectory_advantage([0.0] * 8), np.zeros(8))
    noise = np.float32(0.7) + np.float32(6e-8) * np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(trajectory_advantage(noise), np.zeros(8))
    assert memory_advantage([[0.7, 0.7], [0.7]]) == [[0.0, 0.0], [0.0]]


def test_fault_18_differences_of_equal_probabilities_are_rounding_noise() -> None:
    # P(memory) - P(history), both 0.7 but for the last bit of a float32
    noise = [[6e-8, 0.0], [-6e-8]]
    assert memory_advantage(noise)[1][0] < -1  # on their own scale they look like a signal
    assert memory_advantage(noise, magnitude=0.7) == [[0.0, 0.0], [0.0]]
    assert memory_advantage(noise, "step", magnitude=0.7) == [[0.0, 0.0], [0.0]]
    real = memory_advantage([[1e-5], [3e-5]], magnitude=0.7)
    np.testing.assert_allclose(real, [[-1], [1]])


def test_a_small_but_real_difference_counts() -> None:
    np.testing.assert_allclose(trajectory_advantage([1e-4, 2e-4]), [-1, 1], atol=1e-9)


def test_fault_20_rejected_rows_do_not_shift_the_baseline() -> None:
    # Rejected is NaN. Over [0, 0, 1]: mean 1/3, std sqrt(2)/3.
    got = trajectory_advantage([0, 0, 1, nan])
    np.testing.assert_allclose(got, [-sqrt(0.5), -sqrt(0.5), sqrt(2), 0], atol=1e-12)
    np.testing.assert_allclose(got, [-0.707, -0.707, 1.414, 0], atol=1e-3)


def test_without_scale_the_mean_is_taken_off_and_nothing_divided() -> None:
    """Dr. GRPO: [0, 0, 1, missing] has mean 1/3; equal rewards are exactly 0, not noise."""
    got = trajectory_advantage([0, 0, 1, nan], "none")
    np.testing.assert_allclose(got, [-1 / 3, -1 / 3, 2 / 3, 0], atol=1e-12)
    noisy = np.full(8, np.float32(0.7))
    np.testing.assert_array_equal(trajectory_advantage(noisy, "none"), np.zeros(8))
    np.testing.assert_array_equal(trajectory_advantage([5.0], "none"), [0])
    with pytest.raises(ValueError, match=r"reward\.scale"):
        trajectory_advantage([0, 1], "mean")  # type: ignore[arg-type]


@given(st.lists(reward, max_size=20))
def test_scale_is_the_standard_deviation_of_the_group(rewards: list[float]) -> None:
    finite = [r for r in rewards if isfinite(r)]
    std = float(np.std(finite)) if finite else 0.0
    np.testing.assert_allclose(
        trajectory_advantage(rewards, "none"), std * trajectory_advantage(rewards), atol=1e-9
    )


def test_fault_26_memory_rewards_by_question_and_by_step() -> None:
    rewards = [[0.1, 0.2, 0.3], [0.4]]
    # Pooled: mean .25, population variance .0125, std .1118
    by_question = memory_advantage(rewards, "question")
    assert [len(r) for r in by_question] == [3, 1]
    np.testing.assert_allclose(by_question[0], [-1.342, -0.447, 0.447], atol=1e-3)
    np.testing.assert_allclose(by_question[1], [1.342], atol=1e-3)
    by_step = memory_advantage(rewards, "step")
    np.testing.assert_allclose(by_step[0], [-1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(by_step[1], [1], atol=1e-12)


def test_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"memory\.group"):
        memory_advantage([[1.0]], "batch")  # type: ignore[arg-type]


def test_memory_tokens_get_the_sum_and_others_the_trajectory_alone() -> None:
    # 7 tokens, memory at 1..2 and 4: A^T = 0.5, A^M = -2, weight 0.25 -> 0.5 - 0.5 = 0
    got = token_advantages(7, [(1, 3), (4, 5)], 0.5, -2.0, weight=0.25)
    np.testing.assert_array_equal(got, [0.5, 0, 0, 0.5, 0, 0.5, 0.5])


def test_memory_weight_is_one_by_default_and_zero_is_grpo() -> None:
    np.testing.assert_array_equal(token_advantages(3, [(0, 1)], 1.0, 2.0), [3, 1, 1])
    np.testing.assert_array_equal(token_advantages(3, [(0, 1)], 1.0, 2.0, 0.0), [1, 1, 1])
    np.testing.assert_array_equal(token_advantages(3, [], 1.0, 2.0), [1, 1, 1])


def test_no_tokens_no_advantages() -> None:
    assert token_advantages(0, [(0, 2)], 1.0, 1.0).shape == (0,)
