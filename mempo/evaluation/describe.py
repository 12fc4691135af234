"""Trajectories as plain dictionaries: what the trajectory page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mempo.types import Trajectory


def describe(
    trajectories: Sequence[Trajectory],
    credit: Mapping[str, Sequence[float | None]],
    text: Callable[[Sequence[int]], str],
    *,
    every: int = 1,
) -> list[dict[str, Any]]:
    """JSON-able form of the first trajectories of a rollout file.

    credit: columns of the file, a value a step (may be longer, or lack columns); text: decodes
    token ids; every: of how many the first is described, e.g. one of a question's passes.
    """
    described = []
    at = 0
    for index, t in enumerate(trajectories):
        if index % every:
            at += len(t.steps)
            continue
        steps = []
        first = at
        for s in t.steps:
            steps.append(
                {
                    "memory": s.memory,
                    "text": text(s.output_ids).strip(),
                    "action": s.action,
                    "query_or_answer": s.action_text,
                    "observation": s.observation,
                    "p_answer_mem": _at(credit, "p_answer_mem", at),
                    "p_answer_full": _at(credit, "p_answer_full", at),
                    "adv_mem": _at(credit, "adv_mem", at),
                    "prompt_tokens": len(s.prompt_ids),
                    "output_tokens": len(s.output_ids),
                }
            )
            at += 1
        described.append(
            {
                "question": t.question.text,
                "gold": t.question.gold,
                "answer": t.answer,
                "status": t.status,
                "reward": t.reward,
                "f1": t.f1,
                "em": t.em,
                "advantage": _at(credit, "adv_traj", first) if t.steps else None,
                "steps": steps,
            }
        )
    return described


def _at(credit: Mapping[str, Sequence[float | None]], name: str, index: int) -> float | None:
    value = credit[name][index] if name in credit else None
    return None if value is None or value != value else float(value)
