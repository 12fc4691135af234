"""What is measured: every metric name, and the numbers of a task.

Metric names are public (`area/name`); a run's metrics carry the iteration as their step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from mempo.config import Price
from mempo.evaluation.store_use import store_use
from mempo.types import Question, Trajectory

TASK_FIELDS = ("f1", "em", "format", "p_answer", "tt", "pt", "steps")
EXTRA_FIELDS = (  # not in every table: of older runs, or of agents with a store alone
    *("usd", "mem_tokens", "em_sum", "f1_sum", "well_formed"),
    *("queries", "asked_needed", "asked_needless"),
)
STEP_FIELDS = ("step_p_answer", "step_mem_tokens", "step_context_tokens")  # a list [S] a task
CUT_OFF = ("truncated", "context_overflow")  # statuses of trajectories that ran out of tokens
NAN = float("nan")


def total_tokens(trajectory: Trajectory) -> int:
    """TT: every prompt token and every generated token of every step."""
    return sum(context_tokens(trajectory))


def peak_tokens(trajectory: Trajectory) -> int:
    """PT: the most tokens that one step holds, prompt and generated."""
    return max(context_tokens(trajectory), default=0)


def memory_tokens(trajectory: Trajectory) -> list[int]:
    """Tokens of each memory, steps without one left out."""
    return [sum(b - a for a, b in s.mem_spans) for s in trajectory.steps if s.mem_spans]


def context_tokens(trajectory: Trajectory) -> list[int]:
    """Tokens that each step holds, prompt and generated; their sum is TT, their maximum PT."""
    return [len(s.prompt_ids) + len(s.output_ids) for s in trajectory.steps]


def task_rows(
    trajectories: Sequence[Trajectory],
    p_answer_S: Sequence[float | None],
    price: Price | None = None,
    facts_of: Callable[[Question], Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """One row per task: the columns of an evaluation table.

    Besides `TASK_FIELDS`: `pass`, which of the sampled answers to the question it is; `usd`, what
    the task's own tokens cost at `price` (scoring P(answer | memory) is measurement and not in it;
    without a price there is no such column); `mem_tokens`, the mean length of its memories (NaN
    where none was written); `em_sum` and `f1_sum`, MEM1's scores: sums over the objectives, that
    is K times the means; `well_formed`, the share of its steps that are (NaN without a step); and
    the lists over steps `STEP_FIELDS` (None where a step has no memory, or no probability).

    p_answer_S: P(answer | memory) a step, in the order of trajectories and steps; the last one
    that is known counts for the task. facts_of: for agents with a store, what a question asks for;
    gives the columns of `store_use`.
    """
    values = iter(p_answer_S)
    rows = []
    for t in trajectories:
        of_steps = [next(values) for _ in t.steps]
        known = [p for p in of_steps if p is not None and p == p]
        prompt = sum(len(s.prompt_ids) for s in t.steps)
        tokens = {
            "cost/prompt_tokens": float(prompt),
            "cost/generated_tokens": float(total_tokens(t) - prompt),
        }
        k = t.question.objectives
        rows.append(
            {
                "question_id": t.question.id,
                "pass": t.rollout,
                "objectives": k,
                "f1": t.f1,
                "em": t.em,
                "format": t.format,
                "p_answer": known[-1] if known else NAN,
                "tt": total_tokens(t),
                "pt": peak_tokens(t),
                "steps": len(t.steps),
                **({"usd": usd(tokens, price)} if price else {}),
                "mem_tokens": mean(memory_tokens(t)),
                "em_sum": k * t.em,
                "f1_sum": k * t.f1,
                "well_formed": mean([s.well_formed for s in t.steps]),
                "step_p_answer": [p if p is not None and p == p else None for p in of_steps],
                "step_mem_tokens": [
                    sum(b - a for a, b in s.mem_spans) if s.mem_spans else None for s in t.steps
                ],
                "step_context_tokens": context_tokens(t),
                "status": t.status,
                **(store_use(t, facts_of(t.question)) if facts_of else {}),
            }
        )
    return rows


def evaluation_metrics(rows: Sequence[Mapping[str, Any]], mode: str) -> dict[str, float]:
    """`eval/n{K}/...` (greedy) or `eval_sampled/n{K}/...`: means over the tasks of each K.

    The names are `TASK_FIELDS`, those of `EXTRA_FIELDS` that the rows have, and `truncated_frac`,
    the share of tasks that a limit of tokens cut off.
    """
    area = "eval" if mode == "greedy" else "eval_sampled"
    metrics: dict[str, float] = {}
    for k in sorted({r["objectives"] for r in rows}):
        chosen = [r for r in rows if r["objectives"] == k]
        for name in (*TASK_FIELDS, *(extra for extra in EXTRA_FIELDS if extra in chosen[0])):
            metrics[f"{area}/n{k}/{name}"] = mean([float(r[name]) for r in chosen])
        metrics[f"{area}/n{k}/truncated_frac"] = mean([r["status"] in CUT_OFF for r in chosen])
    return metrics


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What an iteration's rollouts earned and how they ended."""
    memories = [memory_tokens(t) for t in trajectories]
    metrics = {
        "reward/mean": mean([t.reward for t in trajectories]),
        "reward/f1": mean([t.f1 for t in trajectories]),
        "reward/em": mean([t.em for t in trajectories]),
        "reward/format": mean([t.format for t in trajectories]),
        "memory/tokens": mean([tokens for t in memories for tokens in t]),
        "memory/tokens_last": mean([t[-1] for t in memories if t]),
        "rollout/steps": mean([len(t.steps) for t in trajectories]),
        "rollout/truncated_frac": mean([t.status in CUT_OFF for t in trajectories]),
        "rollout/missing_reward": float(sum(not isfinite(t.reward) for t in trajectories)),
        "cost/prompt_tokens": float(sum(len(s.prompt_ids) for t in trajectories for s in t.steps)),
        "cost/generated_tokens": float(
            sum(len(s.output_ids) for t in trajectories for s in t.steps)
        ),
        "cost/cached_tokens": float(sum(s.cached_tokens for t in trajectories for s in t.steps)),
    }
    for status in ("answered", "step_limit", "bad_format", "tool_error"):
        metrics[f"rollout/{status}_frac"] = mean([t.status == status for t in trajectories])
    return metrics


def usd(metrics: Mapping[str, float], price: Price) -> float:
    """Cost in US dollars of the `cost/*_tokens` among `metrics`; prices are per million tokens.

    Cached tokens are prompt tokens too, and pay the cached price instead of the prompt's.
    """
    tokens = {kind: metrics.get(f"cost/{kind}_tokens", 0.0) for kind in price.model_dump()}
    tokens["prompt"] -= tokens["cached"]
    return sum(tokens[kind] * cost for kind, cost in price.model_dump().items()) / 1e6


def mean(values: Sequence[float]) -> float:
    """Mean over the values that are numbers; NaN where there are none."""
    kept = np.asarray(values, dtype=np.float64)
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if kept.size else NAN
