"""Scoring: shared prefixes against one row at a time, and against padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mempo.bench.race import Part, Say, race, ratio, timed
from mempo.bench.subject import SIZES, Sizes, Subject, lived
from mempo.config import Learner
from mempo.credit.scoring import score_questions
from mempo.learners.packing import target_logits
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.distribution import logprobs_of
from mempo.types import Row

ROLLOUTS = 4
BATCHES = (2, 4, 8, 16)


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    steps: Sequence[int] = (3, 6, 10),
    sizes: Sizes = SIZES,
) -> Part:
    """P(answer | memory) and P(answer | history) of a question's rollouts, in float32.

    All arms score the same rows, each once, with logits at the answers alone. The padded batches
    of the last number of steps are those of the best size of `BATCHES`, sorted by length, and
    of 16 in the order in which rows come.
    """
    learner = TorchLearner(subject.model("float32"), subject.codec, Learner())
    found = Part()
    for count in steps:
        rows = _rows(subject, count, sizes)
        names = [f"score T={count}, {arm}" for arm in ("shared", "row by row")]
        found.facts[f"score T={count}, rows"] = len(rows)
        found.facts[f"score T={count}, tokens row by row"] = sum(len(row.ids) for row in rows)
        before = learner.tokens
        values = [learner.logprobs(rows)]
        found.facts[f"score T={count}, tokens shared"] = learner.tokens - before
        arms: dict[str, Any] = {
            names[0]: lambda rows=rows: learner.logprobs(rows),
            names[1]: lambda rows=rows: padded(learner, rows, 1),
        }
        if count == steps[-1]:
            tries = {}
            for size in BATCHES:
                tries[size] = timed(lambda s=size, r=rows: padded(learner, by_length(r), s)).wall
                say(f"score T={count}, batches of {size}: {tries[size]:.1f} s")
            best = min(tries, key=tries.__getitem__)
            names += [f"score T={count}, best batches", f"score T={count}, batches of 16"]
            found.facts["best padded batch of scoring"] = best
            arms[names[2]] = lambda rows=rows, b=best: padded(learner, by_length(rows), b)
            arms[names[3]] = lambda rows=rows: padded(learner, rows, 16)
        values.append(padded(learner, rows, 1))
        found.facts[f"score T={count}, largest difference of log-probs"] = _gap(*values)
        found.laps |= race(arms, rounds=rounds, say=say, warm_up=False)  # they have been
        laps = [found.laps[name] for name in names]
        found.ratios[f"score_vs_rows_t{count}"] = ratio(laps[1], laps[0])
        if count == steps[-1]:
            one_by_one = found.ratios[f"score_vs_rows_t{count}"]
            best_ratio = min(ratio(laps[2], laps[0]), one_by_one, key=lambda r: r.median)
            found.ratios[f"score_vs_padded_t{count}"] = best_ratio
            found.ratios[f"score_vs_padded16_t{count}"] = ratio(laps[3], laps[0])
    return found


def _rows(subject: Subject, steps: int, sizes: Sizes) -> list[Row]:
    """What `score_questions` asks a learner for."""
    asked: list[Row] = []

    def note(rows: list[Row]) -> list[np.ndarray]:
        asked.extend(rows)
        return [np.zeros(row.targets) for row in rows]

    group = lived(subject.codec, steps=steps, rollouts=ROLLOUTS, sizes=sizes)
    score_questions(subject.codec, [group], note, full=True)
    return asked


def by_length(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: len(row.ids))


@torch.no_grad()
def padded(learner: TorchLearner, rows: Sequence[Row], size: int) -> list[np.ndarray]:
    """[targets] log-probs of each row, by padded batches of `size`, as peers compute them."""
    values: list[np.ndarray] = []
    for at in range(0, len(rows), size):
        batch = rows[at : at + size]
        logits, targets = target_logits(learner.model, batch, learner.codec.pad_id)
        parts = logprobs_of(logits, targets).numpy()
        values += np.split(parts, np.cumsum([row.targets for row in batch])[:-1])
    return values


def _gap(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
