"""An update on a question's steps: shared prefixes against padded and packed rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mempo.bench.race import Part, PeakMemory, Say, race, timed
from mempo.bench.subject import Sizes, Subject, lived
from mempo.config import Learner, Loss
from mempo.learners.loss import token_weights
from mempo.learners.packing import Batch, MicroBatch, needed, sampled_row
from mempo.learners.shared import Layout, Segment, flat_inputs
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.types import Row

ROLLOUTS, STEPS = 16, 4
SIZES = Sizes(head=256, memory=40, said=34, reply=64, spread=0.5)  # 78 tokens a step
MICRO_TOKENS = (1024, 2048, 8192)


class PackedLearner(TorchLearner):
    """Rows side by side in one flat row, each whole: no padding, and nothing shared."""

    def _batches(self, rows: Sequence[Row], graph: bool) -> list[MicroBatch]:
        batches: list[MicroBatch] = []
        for i, row in enumerate(rows):
            tokens = len(needed(row))
            if batches and batches[-1].tokens + tokens <= self.settings.micro_tokens:
                last = batches.pop()
                batches.append(MicroBatch([*last.rows, i], last.tokens + tokens))
            else:
                batches.append(MicroBatch([i], tokens))
        self.tokens += sum(batch.tokens for batch in batches)
        return batches

    def _laid_out(self, rows: Sequence[Row]) -> Batch:
        layout = Layout([], [], [], [])
        before, targets = [], []
        for row in rows:
            ids, at = needed(row), len(layout.ids)
            layout.ids.extend(ids)
            layout.positions.extend(range(len(ids)))
            layout.segments.append(Segment(len(ids), ()))
            for i in (i for i, is_target in enumerate(row.mask) if is_target):
                before.append(at + i - 1)
                targets.append(row.ids[i])
        device = next(self.model.parameters()).device
        return Batch(
            flat_inputs(layout, device),
            torch.tensor(before, device=device),
            torch.tensor(targets, device=device),
        )


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    rollouts: int = ROLLOUTS,
    steps: int = STEPS,
    sizes: Sizes = SIZES,
    dtype: str = "bfloat16",
    budgets: Sequence[int] = MICRO_TOKENS,
) -> Part:
    """One update on all steps of a question's rollouts, each layout with its best micro-batch."""
    found = Part()
    _, lived_steps = lived(subject.codec, steps=steps, rollouts=rollouts, sizes=sizes)
    rows = [
        sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids)) for t in lived_steps for s in t
    ]
    batch = train_rows(rows, make(subject, TorchLearner, dtype, max(budgets), shared=True))
    best: dict[str, TorchLearner] = {}
    kinds = {"shared": TorchLearner, "padded": TorchLearner, "packed": PackedLearner}
    for name, kind in kinds.items():
        tries: dict[int, float] = {}
        for budget in budgets:
            learner = make(subject, kind, dtype, budget, shared=name != "padded")
            norms: list[float] = []
            with PeakMemory() as peak:
                lap = timed(lambda x=learner, to=norms: to.append(gradient_norm(x, batch)))
            key = f"train, {name}, {budget} tokens a micro-batch"
            tries[budget] = lap.cpu
            found.facts |= {f"{key}, CPU-s": lap.cpu, f"{key}, peak MiB": peak.mib}
            say(f"{key}: {lap.cpu:.1f} CPU-s, {peak.mib:.0f} MiB")
            if lap.cpu == min(tries.values()):
                best[name] = learner
                found.facts |= {
                    f"train, {name}, best micro-batch": budget,
                    f"train, {name}, tokens": learner.tokens,
                    f"train, {name}, gradient norm": norms[0],
                }
    arms = {f"train, {name}": (lambda x=x: gradient_norm(x, batch)) for name, x in best.items()}
    found.laps = race(arms, rounds=rounds, say=say, warm_up=False)
    found.compare("train_vs_padded", "train, padded", "train, shared")
    found.compare("train_vs_packed", "train, packed", "train, shared")
    return found


def make(
    subject: Subject, kind: type[TorchLearner], dtype: str, budget: int, *, shared: bool
) -> TorchLearner:
    learner = kind(subject.model(dtype), subject.codec, Learner(lr=1e-6, micro_tokens=budget))
    learner.shared = shared and learner.shared
    return learner


def train_rows(rows: Sequence[Row], learner: TorchLearner) -> list[TrainRow]:
    """On policy, with random advantages; a trajectory a row."""
    rng = np.random.default_rng(0)
    weights = token_weights([row.targets for row in rows], range(len(rows)))
    return [
        TrainRow(row, rng.normal(size=row.targets), old, float(weight))
        for row, old, weight in zip(rows, learner.logprobs(rows), weights, strict=True)
    ]


def gradient_norm(learner: TorchLearner, batch: Sequence[TrainRow]) -> float:
    """An update, at a learning rate that changes next to nothing; its gradient's norm."""
    return learner.update(batch, Loss())["grad_norm"]
