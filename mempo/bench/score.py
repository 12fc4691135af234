"""Scoring: shared prefixes against one row at a time, and against padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mempo.bench.race import Part, Say, race, timed
from mempo.bench.subject import SIZES, Sizes, Subject, lived
from mempo.config import Learner
from mempo.credit.scoring import score_questions
from mempo.learners.packing import to_batch
from mempo.learners.readout import target_logprobs
from mempo.learners.torch_learner import TorchLearner
from mempo.types import Row

ROLLOUTS = 4
BATCHES = (1, 2, 4, 8, 16)


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
    of the last number of steps are sorted by length, and of the size of `BATCHES` that is fastest
    on a quarter of the rows; beside them batches of 16 in the order in which rows come.
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
        sample = rows[::4]
        values.append(padded(learner, sample, 1))
        found.facts[f"score T={count}, largest difference of log-probs"] = _gap(
            values[0][::4], values[1]
        )
        if count == steps[-1]:
            best = _best_batch(learner, sample, say)
            found.facts["best padded batch of scoring"] = best
            names.append(f"score T={count}, batches of {best}")
            arms[names[2]] = lambda rows=rows, b=best: padded(learner, by_length(rows), b)
        found.laps |= race(arms, rounds=rounds, say=say, warm_up=False)  # they have been
        found.compare(f"score_vs_rows_t{count}", names[1], names[0])
        if count == steps[-1]:
            found.compare(f"score_vs_padded_t{count}", names[2], names[0])
            again = f"score T={count}, in turn with unsorted batches, shared"
            unsorted = f"score T={count}, unsorted batches of 16"  # slow: one turn is enough
            last = {again: arms[names[0]], unsorted: lambda rows=rows: padded(learner, rows, 16)}
            found.laps |= race(last, rounds=1, say=say, warm_up=False)
            found.compare(f"score_vs_padded16_t{count}", unsorted, again)
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


def _best_batch(learner: TorchLearner, rows: Sequence[Row], say: Say) -> int:
    """The size of `BATCHES` that is fastest on rows sorted by length."""
    ordered = by_length(rows)
    seconds = {size: timed(lambda s=size: padded(learner, ordered, s)).cpu for size in BATCHES}
    say("a quarter of the rows in batches: " + _listed(seconds))
    return min(seconds, key=seconds.__getitem__)


def _listed(seconds: dict[int, float]) -> str:
    return ", ".join(f"of {size} {s:.1f} CPU-s" for size, s in seconds.items())


@torch.no_grad()
def padded(learner: TorchLearner, rows: Sequence[Row], size: int) -> list[np.ndarray]:
    """[targets] log-probs of each row, by padded batches of `size`, as peers compute them."""
    values: list[np.ndarray] = []
    for at in range(0, len(rows), size):
        batch = rows[at : at + size]
        laid_out = to_batch(batch, learner.codec.pad_id, "cpu", shared=False)
        parts = target_logprobs(learner.model, laid_out)[0].numpy()
        values += np.split(parts, np.cumsum([row.targets for row in batch])[:-1])
    return values


def _gap(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
