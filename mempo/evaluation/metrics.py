"""What is measured: every metric name, and the numbers of a task.

Metric names are public (`area/name`); a run's metrics carry the iteration as their step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from mempo.config import Price
from mempo.types import Trajectory

TASK_FIELDS = ("f1", "em", "format", "p_answer", "tt", "pt", "steps")
NAN = float("nan")


def total_tokens(trajectory: Trajectory) -> int:
    """TT: every prompt token and every generated token of every step."""
    return sum(len(s.prompt_ids) + len(s.output_ids) for s in trajectory.steps)


def peak_tokens(trajectory: Trajectory) -> int:
    """PT: the most tokens that one step holds, prompt and generated."""
    return max((len(s.prompt_ids) + len(s.output_ids) for s in trajectory.steps), default=0)


def memory_tokens(trajectory: Trajectory) -> list[int]:
    """Tokens of each memory, steps without one left out."""
    return [sum(b - a for a, b in s.mem_spans) for s in trajectory.steps if s.mem_spans]


def task_rows(
    trajectories: Sequence[Trajectory], p_answer_S: Sequence[float | None]
) -> list[dict[str, Any]]:
    """One row per task: the columns of an evaluation table.

    p_answer_S: P(answer | memory) a step, in the order of trajectories and steps; the last one
    that is known counts for the task.
    """
    values = iter(p_answer_S)
    rows = []
    for t in trajectories:
        known = [p for p in (next(values) for _ in t.steps) if p is not None and p == p]
        rows.append(
            {
                "question_id": t.question.id,
                "objectives": t.question.objectives,
                "f1": t.f1,
                "em": t.em,
                "format": t.format,
                "p_answer": known[-1] if known else NAN,
                "tt": total_tokens(t),
                "pt": peak_tokens(t),
                "steps": len(t.steps),
                "status": t.status,
            }
        )
    return rows


def evaluation_metrics(rows: Sequence[Mapping[str, Any]], mode: str) -> dict[str, float]:
    """`eval/n{K}/...` (greedy) or `eval_sampled/n{K}/...`: means over the tasks of each K."""
    area = "eval" if mode == "greedy" else "eval_sampled"
    metrics: dict[str, float] = {}
    for k in sorted({r["objectives"] for r in rows}):
        chosen = [r for r in rows if r["objectives"] == k]
        for name in TASK_FIELDS:
            metrics[f"{area}/n{k}/{name}"] = mean([float(r[name]) for r in chosen])
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
        "rollout/truncated_frac": mean(
            [t.status in ("truncated", "context_overflow") for t in trajectories]
        ),
        "rollout/missing_reward": float(sum(not isfinite(t.reward) for t in trajectories)),
        "cost/prompt_tokens": float(sum(len(s.prompt_ids) for t in trajectories for s in t.steps)),
        "cost/generated_tokens": float(
            sum(len(s.output_ids) for t in trajectories for s in t.steps)
        ),
        "cost/cached_tokens": 0.0,  # the transformers sampler has no prefix cache
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
