"""How P(answer | history) grows with the history: one pass over it, with an answer at each step."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.agent.protocol import ANSWER_OPEN
from mempo.bench.race import Part, Say, exponent, growth, race
from mempo.bench.score import ROLLOUTS
from mempo.bench.subject import SIZES, Sizes, Subject, lived
from mempo.config import Learner
from mempo.learners.torch_learner import TorchLearner
from mempo.types import Row


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    steps: Sequence[int] = (3, 6, 9, 12),
    sizes: Sizes = SIZES,
) -> Part:
    """Scoring at a fixed number of tokens a step, in float32.

    The exponent is fitted against the tokens of the history, which a trajectory of T steps has
    T - 1 steps of; those against T itself are facts.
    """
    learner = TorchLearner(subject.model("float32"), subject.codec, Learner())
    found, tokens, arms = Part(), [], {}
    for count in steps:
        rows = history_rows(subject, count, sizes)
        before = learner.tokens
        learner.logprobs(rows)
        tokens.append(learner.tokens - before)
        arms[f"history T={count}"] = lambda rows=rows: learner.logprobs(rows)
    found.laps = race(arms, rounds=rounds, say=say, warm_up=False)
    laps = [found.laps[name] for name in arms]
    earlier = [count - 1 for count in steps]
    found.ratios["score_history_growth_exponent"] = growth(earlier, laps)
    found.facts |= {
        "exponent of the tokens of histories": exponent(earlier, tokens),
        "exponent of their time, against T": growth(steps, laps).median,
        "exponent of their tokens, against T": exponent(steps, tokens),
    }
    return found


def history_rows(subject: Subject, steps: int, sizes: Sizes) -> list[Row]:
    """The answer after each step's history, of `ROLLOUTS` rollouts."""
    codec = subject.codec
    question, rollouts = lived(codec, steps=steps, rollouts=ROLLOUTS, sizes=sizes)
    opened, gold = codec.encode(ANSWER_OPEN), codec.encode(question.gold)
    rows = []
    for trajectory in rollouts:
        context = trajectory[0].prompt_ids[: trajectory[0].head_tokens]
        for step in trajectory:
            ids = [*context, *opened, *gold]
            rows.append(Row(ids, [i >= len(ids) - len(gold) for i in range(len(ids))]))
            context = [*context, *step.output_ids, *step.observation_ids]
    return rows
