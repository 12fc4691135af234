from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from mempo.config import Price
from mempo.evaluation.metrics import (
    EXTRA_FIELDS,
    TASK_FIELDS,
    context_tokens,
    evaluation_metrics,
    mean,
    memory_tokens,
    peak_tokens,
    rollout_metrics,
    task_rows,
    total_tokens,
    usd,
)
from mempo.types import Question, Status, Step, Trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def two(make_step: Callable[..., Step], make_trajectory: Make) -> list[Trajectory]:
    """Two trajectories: prompts of 3, 10 and 4 tokens, outputs of 2, 5 and 6."""
    first = make_trajectory(
        [
            make_step([1] * 2, prompt_ids=[1] * 3, mem_spans=[(0, 2)]),
            make_step([1] * 5, prompt_ids=[1] * 10, mem_spans=[(1, 4), (4, 5)]),
        ],
        reward=1.0, em=1.0, f1=1.0, format=1.0,
    )  # fmt: skip
    second = make_trajectory(
        [make_step([1] * 6, prompt_ids=[1] * 4)], rollout=1, status="truncated", answer="", f1=0.5
    )
    return [first, second]


def test_total_and_peak_tokens_count_prompts_and_outputs(two: list[Trajectory]) -> None:
    assert [total_tokens(t) for t in two] == [20, 10]
    assert [peak_tokens(t) for t in two] == [15, 10]
    assert [context_tokens(t) for t in two] == [[5, 15], [10]]
    assert [memory_tokens(t) for t in two] == [[2, 4], []]


def test_a_trajectory_without_steps_costs_nothing(make_trajectory: Make) -> None:
    assert total_tokens(make_trajectory([])) == peak_tokens(make_trajectory([])) == 0


def test_rollout_metrics_by_hand(two: list[Trajectory]) -> None:
    assert rollout_metrics(two) == {
        "reward/mean": 0.5,
        "reward/f1": 0.75,
        "reward/em": 0.5,
        "reward/format": 0.5,
        "memory/tokens": 3.0,
        "memory/tokens_last": 4.0,
        "rollout/steps": 1.5,
        "rollout/truncated_frac": 0.5,
        "rollout/answered_frac": 0.5,
        "rollout/step_limit_frac": 0.0,
        "rollout/bad_format_frac": 0.0,
        "rollout/tool_error_frac": 0.0,
        "rollout/missing_reward": 0.0,
        "cost/prompt_tokens": 17.0,
        "cost/generated_tokens": 13.0,
        "cost/cached_tokens": 0.0,
    }


def test_fault_24_the_share_of_truncated_rollouts_is_a_metric(make_trajectory: Make) -> None:
    cut = [make_trajectory([], status=s) for s in ("truncated", "context_overflow")]
    assert rollout_metrics(cut)["rollout/truncated_frac"] == 1.0
    whole = [make_trajectory([], status=s) for s in ("answered", "bad_format", "step_limit")]
    assert rollout_metrics([*cut, *whole])["rollout/truncated_frac"] == pytest.approx(0.4)


def test_fault_35_tool_errors_are_counted(make_trajectory: Make) -> None:
    made = [make_trajectory([], status="tool_error" if r == 3 else "answered") for r in range(8)]
    assert rollout_metrics(made)["rollout/tool_error_frac"] == 0.125


def test_fault_17_a_missing_reward_is_counted_and_left_out_of_the_mean(
    make_trajectory: Make,
) -> None:
    rewards = (1.0, math.nan, 3.0, math.inf)
    metrics = rollout_metrics([make_trajectory([], reward=r) for r in rewards])
    assert (metrics["reward/mean"], metrics["rollout/missing_reward"]) == (2.0, 2.0)


def test_the_length_of_the_last_memory_is_a_mean_over_trajectories_that_have_one(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    long, short = make_step([1] * 9, mem_spans=[(0, 9)]), make_step([1] * 9, mem_spans=[(3, 4)])
    made = [make_trajectory(s) for s in ([long, short, make_step()], [short, long], [make_step()])]
    metrics = rollout_metrics(made)
    assert (metrics["memory/tokens"], metrics["memory/tokens_last"]) == (5.0, 5.0)
    assert rollout_metrics(made[:1])["memory/tokens_last"] == 1.0


def test_a_task_has_the_last_known_p_answer(two: list[Trajectory], make_trajectory: Make) -> None:
    third = make_trajectory([], status="context_overflow")
    rows = task_rows([two[0], third, two[1]], [0.25, math.nan, None])
    assert rows[0] == {
        "question_id": "q", "pass": 0, "objectives": 1, "f1": 1.0, "em": 1.0, "format": 1.0,
        "p_answer": 0.25, "tt": 20, "pt": 15, "steps": 2, "mem_tokens": 3.0, "em_sum": 1.0,
        "f1_sum": 1.0, "well_formed": 1.0, "step_p_answer": [0.25, None], "step_mem_tokens": [2, 4],
        "step_context_tokens": [5, 15], "status": "answered",
    }  # fmt: skip
    assert [r["steps"] for r in rows] == [2, 0, 1]
    two[0].steps[1].well_formed = False
    assert task_rows(two, [0.25, 0.5, 0.75])[0]["well_formed"] == 0.5
    assert [math.isnan(r["p_answer"]) for r in rows] == [False, True, True]
    assert [r["p_answer"] for r in task_rows(two, [0.25, 0.5, 0.75])] == [0.5, 0.75]


def test_the_lists_over_steps_are_empty_without_steps_and_none_without_a_memory(
    two: list[Trajectory], make_trajectory: Make
) -> None:
    empty, second = task_rows([make_trajectory([], status="context_overflow"), two[1]], [math.nan])
    lists = ("step_p_answer", "step_mem_tokens", "step_context_tokens")
    assert [empty[name] for name in lists] == [[], [], []]
    assert [second[name] for name in lists] == [[None], [None], [10]]
    assert math.isnan(empty["mem_tokens"]) and math.isnan(second["mem_tokens"])
    assert second["pass"] == 1
    json.dumps([empty[name] for name in lists] + [second[name] for name in lists], allow_nan=False)


def test_mem1_sums_over_the_objectives(
    make_question: Callable[..., Question], make_trajectory: Make
) -> None:
    four = make_question([["a"], ["b"], ["c"], ["d"]])
    (row,) = task_rows([make_trajectory([], question=four, em=0.5, f1=0.625)], [])
    assert (row["em_sum"], row["f1_sum"]) == (2.0, 2.5)


def test_a_task_costs_its_own_tokens_and_not_what_measuring_it_takes(
    two: list[Trajectory],
) -> None:
    price = Price(prompt=1.0, cached=7.0, generated=10.0, scored=100.0, trained=100.0)
    rows = task_rows(two, [0.25, 0.5, 0.75], price)
    # Prompts of 3 + 10 and 4 tokens at 1, outputs of 2 + 5 and 6 at 10 dollars a million.
    assert [r["usd"] for r in rows] == pytest.approx([83e-6, 64e-6])
    metrics = evaluation_metrics(rows, "greedy")
    assert metrics["eval/n1/usd"] == pytest.approx(73.5e-6)
    assert metrics["eval/n1/mem_tokens"] == 3.0  # of the one that wrote a memory


def test_evaluation_metrics_are_means_per_number_of_objectives(
    two: list[Trajectory], make_question: Callable[..., Question], make_trajectory: Make
) -> None:
    double = make_question([["a"], ["b"]])
    rows = task_rows([*two, make_trajectory([], question=double, f1=0.25)], [0.25, 0.5, 0.75])
    metrics = evaluation_metrics(rows, "greedy")
    # No price, no money; no store, no queries.
    measured = {*TASK_FIELDS, *EXTRA_FIELDS[1:5], "truncated_frac"}
    assert set(metrics) == {f"eval/n{k}/{name}" for k in (1, 2) for name in measured}
    assert (metrics["eval/n1/f1_sum"], metrics["eval/n2/f1_sum"]) == (0.75, 0.5)
    assert {name: metrics[f"eval/n1/{name}"] for name in TASK_FIELDS} == {
        "f1": 0.75, "em": 0.5, "format": 0.5, "p_answer": 0.625, "tt": 15, "pt": 12.5, "steps": 1.5
    }  # fmt: skip
    assert metrics["eval/n2/f1"] == 0.25
    assert math.isnan(metrics["eval/n2/p_answer"])
    sampled = evaluation_metrics(rows, "sampled")
    assert sampled["eval_sampled/n1/f1"] == 0.75
    assert len(sampled) == len(metrics)


def test_fault_24_the_share_of_evaluated_tasks_that_were_cut_off_is_a_metric(
    make_trajectory: Make,
) -> None:
    statuses: list[Status] = ["truncated", "context_overflow", "answered", "step_limit"]
    rows = task_rows([make_trajectory([], status=status) for status in statuses], [])
    assert evaluation_metrics(rows, "greedy")["eval/n1/truncated_frac"] == 0.5
    assert evaluation_metrics(rows[2:], "sampled")["eval_sampled/n1/truncated_frac"] == 0.0


def test_cost_is_in_dollars_per_million_tokens() -> None:
    metrics = {
        "cost/prompt_tokens": 2e6, "cost/generated_tokens": 5e5, "cost/trained_tokens": 1e6,
        "reward/mean": 1.0,
    }  # fmt: skip
    price = Price(prompt=1.0, cached=9.0, generated=2.0, scored=9.0, trained=0.5)
    assert usd(metrics, price) == pytest.approx(2.0 + 1.0 + 0.5)
    assert usd({}, price) == 0.0


def test_cached_tokens_pay_the_cached_price_alone() -> None:
    metrics = {"cost/prompt_tokens": 3e6, "cost/cached_tokens": 1e6}
    assert usd(metrics, Price(prompt=2.0, cached=0.5)) == pytest.approx(2 * 2.0 + 0.5)


def test_a_mean_leaves_out_what_is_no_number() -> None:
    assert mean([1.0, math.nan, 2.0, math.inf]) == 1.5
    assert math.isnan(mean([]))
    assert math.isnan(mean([math.nan]))
