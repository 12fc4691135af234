"""How the learner's part of an iteration (scoring and update) grows with its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mempo.bench.race import Part, Say, growth, race
from mempo.bench.subject import SIZES, Sizes, Subject, lived
from mempo.bench.train import make, train_rows
from mempo.config import Loss
from mempo.credit.scoring import score_questions
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner

MICRO_TOKENS = 4096


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    rollouts: Sequence[int] = (2, 4, 8),
    steps: Sequence[int] = (2, 4, 8),
    replies: Sequence[int] = (80, 160, 320),
    sizes: Sizes = SIZES,
    dtype: str = "bfloat16",
) -> Part:
    """Exponents of the time against N, T and the tokens of a reply; of the three the others stay.

    A question's steps are scored (memory and history) and trained once. Where N grows, T is the
    first of `steps`, and so on.
    """
    learner = make(subject, TorchLearner, dtype, MICRO_TOKENS, shared=True)

    def work(n: int, t: int, reply: int) -> Any:
        group = lived(subject.codec, steps=t, rollouts=n, sizes=replace(sizes, reply=reply))
        rows = [
            sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids)) for o in group[1] for s in o
        ]
        batch = train_rows(rows, learner)

        def iterate() -> None:
            score_questions(subject.codec, [group], learner.logprobs, full=True)
            learner.update(batch, Loss())

        return iterate

    points = {
        "N": [(n, steps[0], replies[0]) for n in rollouts],
        "T": [(rollouts[0], t, replies[0]) for t in steps],
        "reply": [(rollouts[0], steps[1], reply) for reply in replies],
    }
    names = {p: "growth, N={} T={} reply={}".format(*p) for line in points.values() for p in line}
    arms = {name: work(*point) for point, name in names.items()}
    found = Part(laps=race(arms, rounds=rounds, say=say))
    for at, (letter, line) in enumerate(points.items()):
        laps = [found.laps[names[point]] for point in line]
        found.ratios[f"iteration_growth_exponent_{letter}"] = growth([p[at] for p in line], laps)
    return found
