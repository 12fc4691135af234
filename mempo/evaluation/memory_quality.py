"""How good memories are: what they are worth for the answer, and which facts they keep.

Metrics of one iteration, by their public names. What was not measured is left out, but for
`memory/p_answer` and `memory/p_full`, which are always there and then NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from mempo.evaluation.facts import stated
from mempo.evaluation.metrics import mean
from mempo.types import Question, Step, Trajectory

MAX_STEPS = 16  # step indices with a metric of their own


def scored_quality(
    trajectories: Sequence[Trajectory], p_mem_S: Sequence[float], p_full_S: Sequence[float]
) -> dict[str, float]:
    """P(answer | memory) as a mean, by step index, and against the full history.

    p_*_S: a value a step, in the order of trajectories and steps, NaN where it is not known.

        memory/p_answer            mean over all memories
        memory/p_full              mean of P(answer | full history) before the same steps
        memory/p_answer_step{t}    mean over the memories of step t = 1 .. 16
        memory/beats_history_frac  share of memories with P(answer | memory) > P(answer | history),
                                   of those where both are known
    """
    metrics = {"memory/p_answer": mean(p_mem_S), "memory/p_full": mean(p_full_S)}
    index = [t for trajectory in trajectories for t in range(1, len(trajectory.steps) + 1)]
    for t in range(1, MAX_STEPS + 1):
        of_step = [p for p, at in zip(p_mem_S, index, strict=True) if at == t and p == p]
        if of_step:
            metrics[f"memory/p_answer_step{t}"] = mean(of_step)
    pairs = [(m, f) for m, f in zip(p_mem_S, p_full_S, strict=True) if m == m and f == f]
    if pairs:
        metrics["memory/beats_history_frac"] = mean([m > f for m, f in pairs])
    return metrics


def fact_quality(
    trajectories: Sequence[Trajectory], facts_of: Callable[[Question], Sequence[str]]
) -> dict[str, float]:
    """Which of the facts that a question asks for its memories hold.

    facts_of: the facts as a memory states them; none where the world does not know them.

        memory/facts_kept_frac  of the facts in a memory, the share that is in the next step's
                                memory too; a step without a memory has no part in it
        memory/facts_held_frac  of the facts that the replies before a step have shown, the share
                                that is in its memory

    Both are pooled over all steps of all trajectories.
    """
    before = kept = seen = held = 0
    for trajectory in trajectories:
        facts = facts_of(trajectory.question)
        if not facts:
            continue
        memories = [_facts_in(step, facts) for step in trajectory.steps]
        for now, then in pairwise(memories):
            if now is not None and then is not None:
                before += len(now)
                kept += len(now & then)
        shown: set[str] = set()
        for step, memory in zip(trajectory.steps, memories, strict=True):
            if memory is not None:
                seen += len(shown)
                held += len(shown & memory)
            shown |= stated(step.observation, facts)
    metrics = {}
    if before:
        metrics["memory/facts_kept_frac"] = kept / before
    if seen:
        metrics["memory/facts_held_frac"] = held / seen
    return metrics


def _facts_in(step: Step, facts: Sequence[str]) -> set[str] | None:
    """The facts in a step's memory; None where the step has none."""
    return None if step.memory is None else stated(step.memory, facts)
