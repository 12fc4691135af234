"""P(answer | context): how likely the right answer has become, given only the memory, or all.

P(c) = exp(1/L sum_l log pi(a_l | c, a_<l)), the geometric mean over the answer's L tokens, at
temperature 1 (METHOD section 2). The context is built from token ids as they were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

import numpy as np

from mempo.agent.protocol import ANSWER_OPEN, memory_block_ids
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step

MAX_ALIASES = 8

LogProbs = Callable[[list[Row]], list[np.ndarray]]  # rows -> per row [L] log-probs of its targets


def gold_texts(question: Question) -> list[str]:
    """The texts to score: up to 8 aliases of a single objective, else the joined first ones."""
    if question.objectives == 1:
        return question.answers[0][:MAX_ALIASES]
    return [question.gold]


def score_questions(
    codec: Codec,
    groups: Sequence[tuple[Question, Sequence[Sequence[Step]]]],
    logprobs: LogProbs,
    *,
    full: bool,
) -> list[list[list[tuple[float, float]]]]:
    """(P(answer | memory), P(answer | full history)) a step, by question, rollout and step.

    groups: questions, each with the steps of its rollouts. All rows are given to `logprobs` at
    once, which computes what they share (the question, earlier history, equal memories) once.
    P is NaN where the step has no <mem> or the gold has no tokens, and P_full where it was
    not asked for. The history of step t is all that came before it: the earlier steps' outputs
    and replies. Of several aliases the one likeliest under the memory counts, and the same one is
    used for the history.
    """
    scored = score_aliases(codec, groups, logprobs, full=full)
    return [[[step[:2] for step in steps] for steps in group] for group in scored]


def score_aliases(
    codec: Codec,
    groups: Sequence[tuple[Question, Sequence[Sequence[Step]]]],
    logprobs: LogProbs,
    *,
    full: bool,
    grain: int | None = None,
    aliases: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[list[list[tuple[float, float, int]]]]:
    """`score_questions`, and as a third value which alias counted; -1 where none did.

    grain: score this part of a two-grain memory alone, in place of the whole memory.
    aliases: score these, a step each, in place of the likeliest; as another call returned them.
    """
    opened = codec.encode(ANSWER_OPEN)
    rows: list[Row] = []
    wanted: dict[tuple, int] = {}

    def ask(context: Sequence[int], gold: Sequence[int]) -> int:
        """Index of the row; equal rows (all first histories of a group) are scored once."""
        ids = [*context, *opened, *gold]
        key = (tuple(ids), len(gold))
        if key not in wanted:
            wanted[key] = len(rows)
            n = len(ids) - len(gold)
            rows.append(Row(ids, [i >= n for i in range(len(ids))]))
        return wanted[key]

    # Per group, trajectory and step: the aliases, their rows under memory, under history.
    plan: list[list[list[tuple[Sequence[int], list[int], list[int]]]]] = []
    for g, (question, trajectories) in enumerate(groups):
        golds = [ids for text in gold_texts(question) if (ids := codec.encode(text))]
        group_plan = []
        for i, steps in enumerate(trajectories):
            history: list[int] = []
            step_plan = []
            for t, step in enumerate(steps):
                head = step.prompt_ids[: step.head_tokens]
                by_memory: list[int] = []
                by_history: list[int] = []
                tried: Sequence[int] = range(len(golds)) if aliases is None else [aliases[g][i][t]]
                if step.mem_spans and golds:
                    block = memory_block_ids(codec, step.output_ids, grain=grain)
                    by_memory = [ask([*head, *block], golds[a]) for a in tried]
                    if full:
                        by_history = [ask([*head, *history], golds[a]) for a in tried]
                step_plan.append((tried, by_memory, by_history))
                if full:
                    history += [*step.output_ids, *step.observation_ids]
            group_plan.append(step_plan)
        plan.append(group_plan)

    values = [float(np.exp(np.mean(logp))) for logp in logprobs(rows)] if rows else []

    def resolve(
        tried: Sequence[int], by_memory: list[int], by_history: list[int]
    ) -> tuple[float, float, int]:
        if not by_memory:
            return nan, nan, -1
        best = max(range(len(by_memory)), key=lambda a: values[by_memory[a]])
        p_full = values[by_history[best]] if by_history else nan
        return values[by_memory[best]], p_full, tried[best]

    return [[[resolve(*s) for s in steps] for steps in group] for group in plan]
