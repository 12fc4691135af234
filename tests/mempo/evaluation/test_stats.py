import math
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from mempo.evaluation.stats import (
    KEYS,
    TASK_FIELDS,
    Interval,
    buckets,
    checked,
    crossed_interval,
    mean_interval,
    ordered,
    require_columns,
    seed_question_table,
    summary_table,
)

NAN = float("nan")
SCORE = st.floats(0, 1, width=32)


def naive_crossed(values: np.ndarray, resamples: int, level: float) -> tuple[float, float]:
    """Owen's pigeonhole bootstrap, one resample and one draw at a time."""
    draw = random.Random(5)
    seeds, questions = values.shape
    means = []
    for _ in range(resamples):
        drawn = [draw.randrange(questions) for _ in range(questions)]
        of_seeds = []
        for _ in range(seeds):
            row = values[draw.randrange(seeds)]
            known = [row[q] for q in drawn if not math.isnan(row[q])]
            if known:
                of_seeds.append(sum(known) / len(known))
        if of_seeds:
            means.append(sum(of_seeds) / len(of_seeds))
    means.sort()
    return means[int(resamples * (1 - level) / 2)], means[int(resamples * (1 + level) / 2)]


# --- intervals


def over_questions(values: ArrayLike, **settings: Any) -> Interval:
    """The interval of one seed."""
    return crossed_interval(np.asarray(values)[None], **settings)


def test_the_bootstrap_of_two_values_by_hand():
    # Four equally likely resamples: means 0, 0.5, 0.5, 1.
    wide = over_questions([0.0, 1.0], level=0.6, key=("x",))  # quantiles 0.2 and 0.8
    assert wide == Interval(0.5, 0.0, 1.0, 2)
    narrow = over_questions([0.0, 1.0], level=0.4, key=("x",))  # quantiles 0.3 and 0.7
    assert narrow == Interval(0.5, 0.5, 0.5, 2)


def test_the_bootstrap_over_questions_agrees_with_a_naive_loop():
    values = np.random.default_rng(0).beta(0.5, 0.5, size=40)
    found = over_questions(values, level=0.9, resamples=8000, key=("naive",))
    draw = random.Random(1)
    means = sorted(sum(draw.choices(values.tolist(), k=40)) / 40 for _ in range(8000))
    assert found.mean == pytest.approx(values.mean())
    # A quantile of 8,000 means of standard deviation 0.06 is known to about 0.001.
    assert (found.low, found.high) == pytest.approx((means[400], means[7600]), abs=0.006)


def test_the_crossed_bootstrap_agrees_with_a_naive_loop():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(4, 1)) + rng.normal(size=(1, 15)) + 0.5 * rng.normal(size=(4, 15))
    values[rng.random(values.shape) < 0.2] = NAN
    found = crossed_interval(values, level=0.9, resamples=6000, key=("naive",))
    low, high = naive_crossed(values, 6000, 0.9)
    assert found.mean == pytest.approx(np.nanmean(values, axis=1).mean())
    assert found.n == np.isfinite(values).sum()
    # The means spread with a standard deviation of some 0.5.
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.06)


def test_noise_that_seeds_share_is_not_averaged_away():
    # Both seeds know question 1 only: like one seed with two questions, not like four values.
    shared = crossed_interval([[0.0, 1.0], [0.0, 1.0]], level=0.6, key=("x",))
    assert shared == Interval(0.5, 0.0, 1.0, 4)
    # Four independent values: P(mean = 0) is 1/16, so 0 lies outside the middle 0.6.
    assert over_questions([0.0, 1.0, 0.0, 1.0], level=0.6, key=("x",)).low == 0.25


def test_noise_between_seeds_is_not_averaged_away_by_questions():
    found = crossed_interval([[0.0] * 50, [1.0] * 50], level=0.6, key=("x",))
    assert found == Interval(0.5, 0.0, 1.0, 100)


def test_missing_cells_leave_each_seed_its_own_mean():
    # Seed means 1 and (0 + 2 + 4) / 3 = 2, each seed weighing the same; the third has none.
    found = crossed_interval([[1.0, NAN, NAN], [0.0, 2.0, 4.0], [NAN] * 3], key=("x",))
    assert (found.mean, found.n) == (1.5, 4)
    assert 0.0 <= found.low < 1.5 < found.high <= 4.0


def test_seeds_without_a_common_question_still_have_an_interval():
    found = crossed_interval([[1.0, NAN], [NAN, 3.0]], key=("x",))
    assert (found.mean, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 2)


@pytest.mark.parametrize("nothing", [[], [NAN], [NAN, float("inf")]])
def test_no_value_gives_no_mean(nothing):
    found = over_questions(nothing, key=("x",))
    assert found.n == 0
    assert all(math.isnan(x) for x in (found.mean, found.low, found.high))


def test_one_value_has_no_interval():
    found = over_questions([NAN, 0.25], key=("x",))
    assert (found.mean, found.n) == (0.25, 1)
    assert math.isnan(found.low) and math.isnan(found.high)


def test_draws_depend_on_the_key_alone():
    values = np.random.default_rng(0).random(30)
    first = over_questions(values, key=("a", 1))
    np.random.default_rng(1).random(5)
    assert over_questions(values, key=("a", 1)) == first
    assert over_questions(values, key=("a", 2)) != first


@given(st.lists(SCORE, min_size=2, max_size=20), st.floats(-5, 5), st.integers(1, 50))
def test_an_interval_lies_within_the_values_and_moves_with_them(values, shift, resamples):
    found = over_questions(values, resamples=resamples, key=("x",))
    small = 1e-9
    assert min(values) - small <= found.low <= found.high <= max(values) + small
    moved = over_questions([v + shift for v in values], resamples=resamples, key=("x",))
    expected = (found.mean + shift, found.low + shift, found.high + shift)
    assert (moved.mean, moved.low, moved.high) == pytest.approx(expected, abs=1e-9)


def test_large_data_are_resampled_in_blocks():
    values = np.random.default_rng(0).random(30_000)
    found = over_questions(values, resamples=200, key=("x",))
    # Standard error 1 / sqrt(12 x 30,000) = 0.00167; the interval is about 3.9 of them wide.
    assert found.high - found.low == pytest.approx(3.92 * 0.00167, rel=0.3)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95.0, NAN])
def test_levels_are_shares(level):
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got"):
        over_questions([1.0, 2.0], level=level, key=())


def test_an_interval_needs_resamples():
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        over_questions([1.0, 2.0], resamples=0, key=())


# --- tables


def test_known_methods_come_first_and_others_by_name():
    names = ["zeta", "MemPO", "GRPO", "alpha", "SFT", "GRPO", "ReAct"]
    assert ordered(names) == ["SFT", "ReAct", "GRPO", "MemPO", "alpha", "zeta"]
    assert ordered([]) == []


def test_fault_51_missing_columns_are_named(task, table):
    with pytest.raises(ValueError, match=r"mine lacks the columns \['b'\]; it needs \['a', 'b'\]"):
        require_columns(pd.DataFrame({"a": [1]}), ["a", "b"], name="mine")
    with pytest.raises(ValueError, match=r"evaluations lacks the columns \['tt'\]"):
        checked(table(task("GRPO", 0, "q", 1.0)).drop(columns="tt"))


def test_checked_tables_have_numbers_and_leave_the_given_one_alone(task, table):
    given_table = table(task("GRPO", 0, "q", None))
    found = checked(given_table)
    assert math.isnan(found["f1"].iloc[0])
    assert all(found[metric].dtype == float for metric in TASK_FIELDS)
    assert given_table["f1"].iloc[0] is None
    assert set(KEYS) <= set(found.columns)


def test_a_question_is_told_apart_by_its_objectives(task, table):
    frame = table(
        task("GRPO", 0, "a", 0.0, objectives=2),
        task("GRPO", 0, "a", 1.0, objectives=4),
        task("GRPO", 1, "a", 0.5, objectives=2),
    )
    found = seed_question_table(frame, "f1")
    assert found.index.tolist() == [0, 1]
    assert found.columns.tolist() == [(2, "a"), (4, "a")]
    np.testing.assert_array_equal(found.to_numpy(), [[0.0, 1.0], [0.5, NAN]])


def test_a_mean_with_its_interval_from_rows_in_any_order(of_seed):
    scores = [[0.0, 1.0, 0.5], [1.0, 1.0, 0.0]]
    frame = of_seed("GRPO", scores)
    found = mean_interval(frame.sample(frac=1, random_state=1), "f1", key=("x",))
    assert found == crossed_interval(scores, key=("x",))
    assert found.mean == pytest.approx((0.5 + 2 / 3) / 2)


def test_the_passes_of_a_question_are_one_cluster(task, table):
    # Question a: 0 and 1 in every pass, question b: always 1. Eight values, but two questions.
    passes = table(
        *(task("GRPO", 0, "a", float(i % 2)) for i in range(4)),
        *(task("GRPO", 0, "b", 1.0) for _ in range(4)),
    )
    found = mean_interval(passes, "f1", level=0.6, key=("x",))
    assert found == Interval(0.75, 0.5, 1.0, 2)  # the bootstrap of 0.5 and 1
    assert found == over_questions([0.5, 1.0], level=0.6, key=("x",))
    [row] = summary_table(passes).to_dict("records")
    assert (row["f1"], row["n"]) == (0.75, 2)


def test_a_question_with_more_passes_weighs_no_more(task, table):
    frame = table(*(task("GRPO", 0, "a", 0.0) for _ in range(3)), task("GRPO", 0, "b", 1.0))
    assert mean_interval(frame, "f1", key=("x",)).mean == 0.5
    assert summary_table(frame)["f1"].tolist() == [0.5]


# --- buckets


def test_buckets_by_hand():
    found = buckets([0.0, 0.1, 0.5, 0.99, 1.0, NAN], [1, 0, NAN, 1, 0, 1], (0.0, 0.5, 0.9, 1.0))
    assert found.columns.tolist() == ["low", "high", "n", "share", "mean"]
    assert found["n"].tolist() == [2, 1, 2]
    assert found["share"].tolist() == [0.4, 0.2, 0.4]
    np.testing.assert_array_equal(found["mean"], [0.5, NAN, 0.5])
    assert found["low"].tolist() == [0.0, 0.5, 0.9]
    assert found["high"].tolist() == [0.5, 0.9, 1.0]


def test_an_empty_bucket_and_an_empty_table():
    found = buckets([0.9], [1.0], (0.0, 0.5, 1.0))
    assert found["share"].tolist() == [0.0, 1.0]
    assert math.isnan(found["mean"].iloc[0])
    assert buckets([], [], (0, 1))["n"].tolist() == [0]


@given(
    st.lists(st.tuples(SCORE, SCORE), min_size=1, max_size=30),
    st.lists(st.floats(0.01, 0.99), max_size=5, unique=True),
)
def test_buckets_split_the_data_and_lose_nothing(pairs, inner):
    values, outcomes = np.array([v for v, _ in pairs]), np.array([o for _, o in pairs])
    edges = [0.0, *sorted(inner), 1.0]
    rows = buckets(values, outcomes, edges).to_dict("records")
    assert sum(row["n"] for row in rows) == len(pairs)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    total = sum(row["n"] * row["mean"] for row in rows if row["n"])
    assert total == pytest.approx(outcomes.sum(), abs=1e-6)
    for row in rows:
        last = row["high"] == 1.0
        inside = [row["low"] <= v < row["high"] or (last and v == 1.0) for v in values]
        assert row["n"] == sum(inside)


@pytest.mark.parametrize("edges", [[], [0.0], [0.0, 0.0], [1.0, 0.0], [0.0, NAN]])
def test_edges_have_to_increase(edges):
    with pytest.raises(ValueError, match="edges must be at least two increasing numbers"):
        buckets([0.5], [1.0], edges)


def test_values_outside_of_the_edges_are_refused():
    with pytest.raises(ValueError, match="values from -1 to 3 lie outside the edges 0 to 1"):
        buckets([-1.0, 0.5, 3.0], [0, 0, 0], (0, 1))
    with pytest.raises(ValueError, match="2 values but 1 outcomes"):
        buckets([0.1, 0.2], [1.0], (0, 1))


# --- the summary


def test_the_summary_is_a_mean_of_seed_means(task, table):
    frame = table(
        task("MemPO", 0, "a", 1.0, p_answer=0.5),
        task("MemPO", 0, "b", 0.0, p_answer=None),
        task("MemPO", 0, "c", 0.5, p_answer=0.7),
        task("MemPO", 1, "a", 0.9, p_answer=0.2),
        task("GRPO", 0, "a", 0.25, tt=300),
    )
    found = summary_table(frame)
    assert found["method"].tolist() == ["GRPO", "MemPO"]
    grpo, mempo = found.to_dict("records")
    # Seed means 0.5 and 0.9: mean 0.7, sample standard deviation 0.4 / sqrt(2).
    assert mempo["f1"] == pytest.approx(0.7)
    assert mempo["f1_std"] == pytest.approx(0.4 / math.sqrt(2))
    assert mempo["p_answer"] == pytest.approx((0.6 + 0.2) / 2)
    assert (mempo["seeds"], mempo["n"]) == (2, 4)
    assert (grpo["f1"], grpo["tt"], grpo["seeds"], grpo["n"]) == (0.25, 300.0, 1, 1)
    assert math.isnan(grpo["f1_std"]) and math.isnan(grpo["p_answer"])


def test_the_summary_is_ordered_by_method_objectives_and_mode(task, table):
    frame = table(
        *(
            task(method, 0, "a", 1.0, objectives=k, mode=mode)
            for method in ("other", "MemPO", "SFT")
            for k in (10, 2)
            for mode in ("sampled", "greedy")
        )
    )
    found = summary_table(frame)
    order = [(k, mode) for k in (2, 10) for mode in ("greedy", "sampled")]
    expected = [(method, *rest) for method in ("SFT", "MemPO", "other") for rest in order]
    assert list(found[["method", "objectives", "mode"]].itertuples(index=False)) == expected


def test_an_empty_table_has_an_empty_summary(task, table):
    found = summary_table(pd.DataFrame())
    assert found.empty
    assert (
        found.columns.tolist() == summary_table(table(task("GRPO", 0, "a", 1.0))).columns.tolist()
    )
