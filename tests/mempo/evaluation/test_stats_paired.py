import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mempo.evaluation.stats import (
    Interval,
    crossed_interval,
    paired_difference,
    paired_t_interval,
    summary_table,
)

NAN = float("nan")
SCORE = st.floats(0, 1, width=32)


# --- paired differences


def test_a_paired_difference_by_hand(of_seed):
    ours = of_seed("MemPO", [[0.9, 0.5, 0.7], [0.4, 0.8, 0.6]])
    theirs = of_seed("GRPO", [[0.5, 0.5, 0.6], [0.6, 0.3, 0.6]])
    found = paired_difference(ours, theirs, key=("x",))
    # Seed 0: (0.4 + 0 + 0.1) / 3; seed 1: (-0.2 + 0.5 + 0) / 3.
    assert found.per_seed == pytest.approx({0: 0.5 / 3, 1: 0.3 / 3})
    assert found.mean == pytest.approx(0.8 / 6)
    assert found.pairs == 6
    differences = [[0.4, 0.0, 0.1], [-0.2, 0.5, 0.0]]
    expected = crossed_interval(differences, key=("paired", "f1", "x"))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_only_tasks_that_both_were_given_are_compared(task, table):
    ours = table(
        task("MemPO", 0, "a", 1.0),
        task("MemPO", 0, "b", 0.0),  # GRPO was not asked
        task("MemPO", 0, "c", None),  # not measured here
        task("MemPO", 0, "d", 0.7),  # not measured there
        task("MemPO", 0, "a", 0.1, objectives=4),
        task("MemPO", 7, "a", 0.9),  # no such seed of GRPO
    )
    theirs = table(
        task("GRPO", 0, "a", 0.25),
        task("GRPO", 0, "c", 1.0),
        task("GRPO", 0, "d", NAN),
        task("GRPO", 1, "a", 0.0),
        task("GRPO", 0, "a", 0.0, objectives=6),
    )
    found = paired_difference(ours, theirs)
    assert (found.per_seed, found.mean, found.pairs) == ({0: 0.75}, 0.75, 1)
    assert math.isnan(found.low) and math.isnan(found.high)


def test_every_seed_weighs_the_same_however_many_pairs_it_has(task, table):
    ours = table(*(task("MemPO", s, q, 1.0) for s, q in ((0, "a"), (0, "b"), (0, "c"), (1, "a"))))
    theirs = table(
        *(task("GRPO", s, q, f) for s, q, f in ((0, "a", 1), (0, "b", 1), (0, "c", 1), (1, "a", 0)))
    )
    found = paired_difference(ours, theirs)
    assert (found.per_seed, found.mean, found.pairs) == ({0: 0.0, 1: 1.0}, 0.5, 4)


def test_repeated_rows_of_a_task_are_averaged_first(task, table):
    ours = table(task("MemPO", 0, "a", 1.0), task("MemPO", 0, "a", 0.0), task("MemPO", 0, "b", 1.0))
    theirs = table(task("GRPO", 0, "a", 0.0), task("GRPO", 0, "b", 0.0))
    found = paired_difference(ours, theirs)
    assert (found.mean, found.pairs) == (0.75, 2)


def test_modes_are_never_mixed(task, table):
    ours = table(
        task("MemPO", 0, "a", 1.0, mode="greedy"), task("MemPO", 0, "a", 0.5, mode="sampled")
    )
    theirs = table(
        task("GRPO", 0, "a", 0.0, mode="sampled"), task("GRPO", 0, "a", 0.8, mode="greedy")
    )
    found = paired_difference(ours, theirs)
    # 0.2 and 0.5: crossed, sampled against greedy, would give 1.0 and -0.3.
    assert found.mean == pytest.approx(0.35)
    assert found.pairs == 2
    assert (found.low, found.high) == pytest.approx((0.2, 0.5))


def test_a_constant_gain_is_certain_however_hard_the_questions_vary(of_seed):
    scores = [[0.1, 0.5, 0.9], [0.0, 0.3, 0.6]]
    found = paired_difference(
        of_seed("MemPO", [[s + 0.1 for s in row] for row in scores]), of_seed("GRPO", scores)
    )
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


@settings(max_examples=25)
@given(st.lists(st.tuples(SCORE, SCORE), min_size=1, max_size=12), st.integers(1, 3))
def test_swapping_the_sides_turns_the_sign(of_seed, pairs, seeds):
    ours = of_seed("MemPO", [[a for a, _ in pairs]] * seeds)
    theirs = of_seed("GRPO", [[b for _, b in pairs]] * seeds)
    one = paired_difference(ours, theirs, resamples=50)
    two = paired_difference(theirs, ours, resamples=50)
    mirrored = (-two.mean, -two.high, -two.low)
    assert (one.mean, one.low, one.high) == pytest.approx(mirrored, abs=1e-9, nan_ok=True)
    assert one.pairs == two.pairs == seeds * len(pairs)


def test_nothing_to_compare_is_no_error(task, table):
    ours, theirs = table(task("MemPO", 0, "a", 1.0)), table(task("GRPO", 0, "b", 1.0))
    found = paired_difference(ours, theirs)
    assert found.pairs == 0
    assert found.per_seed == {}
    assert all(math.isnan(x) for x in (found.mean, found.low, found.high))
    empty = paired_difference(ours.head(0), theirs)
    assert empty.pairs == 0


def test_fault_51_a_metric_that_nobody_recorded_is_named(task, table):
    one = table(task("MemPO", 0, "a", 1.0))
    with pytest.raises(ValueError, match=r"a lacks the columns \['luck'\]"):
        paired_difference(one, one, metric="luck")
    with pytest.raises(ValueError, match=r"b lacks the columns \['seed'\]"):
        paired_difference(one, one.drop(columns="seed"))


def test_the_same_seed_from_two_cold_starts_is_two_runs(task, table):
    ours = table(task("MemPO", 0, "a", 1.0, start="one"), task("MemPO", 0, "a", 0.5, start="two"))
    theirs = table(task("GRPO", 0, "a", 0.25, start="one"), task("GRPO", 0, "a", 0.5, start="two"))
    found = paired_difference(ours, theirs)
    assert found.per_seed == {("one", 0): 0.75, ("two", 0): 0.0}
    assert (found.mean, found.pairs) == (0.375, 2)
    assert summary_table(ours)[["seeds", "n"]].to_numpy().tolist() == [[2, 2]]
    merged = paired_difference(ours.drop(columns="start"), theirs.drop(columns="start"))
    assert merged.per_seed == {0: 0.375}


# --- Student's t over pairs of runs


def test_the_t_interval_by_hand():
    # Differences 1, 2 and 3: mean 2, s = 1; the table's t at 2 degrees of freedom is 4.303.
    found = paired_t_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    reach = 4.302653 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - reach, 2 + reach))
    assert found.n == 3


@settings(max_examples=40)
@given(st.lists(st.tuples(SCORE, SCORE), min_size=2, max_size=9), st.sampled_from([0.8, 0.95]))
def test_the_t_interval_is_that_of_scipy_s_paired_test(pairs, level):
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    if np.ptp(a - b) < 1e-6:
        return  # scipy warns of differences that are all the same
    found = paired_t_interval(a, b, level=level)
    expected = scipy_stats.ttest_rel(a, b).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    whole = scipy_stats.t.interval(
        level, len(a) - 1, loc=np.mean(a - b), scale=scipy_stats.sem(a - b)
    )
    assert (found.low, found.high) == pytest.approx(whole, abs=1e-9)


def test_equal_differences_have_a_t_interval_of_no_width():
    found = paired_t_interval([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert found == Interval(0.5, 0.5, 0.5, 3)


def test_too_few_pairs_have_no_t_interval():
    one, none = paired_t_interval([1.0, NAN], [0.5, 0.0]), paired_t_interval([NAN], [0.0])
    assert (one.mean, one.n, none.n) == (0.5, 1, 0)
    assert all(math.isnan(x) for x in (one.low, one.high, none.mean, none.low))
    with pytest.raises(ValueError, match="two sides of one length, got 2 and 3"):
        paired_t_interval([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        paired_t_interval([1.0, 2.0], [1.0, 2.0], level=95)


def test_a_paired_difference_has_the_t_interval_of_its_seeds(of_seed):
    ours = of_seed("MemPO", [[0.9, 0.5], [0.4, 0.8], [0.1, 0.3]])
    theirs = of_seed("GRPO", [[0.5, 0.5], [0.6, 0.3], [0.0, 0.0]])
    found = paired_difference(ours, theirs)
    expected = scipy_stats.ttest_rel([0.7, 0.6, 0.2], [0.5, 0.45, 0.0]).confidence_interval(0.95)
    assert (found.t_low, found.t_high) == pytest.approx((expected.low, expected.high))
    single = paired_difference(of_seed("MemPO", [[0.5]]), of_seed("GRPO", [[0.25]]))
    assert math.isnan(single.t_low) and math.isnan(single.t_high)
