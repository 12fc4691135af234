"""A workbench for tests of the learner: equal policies, random rows, rows on policy."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Learner, Loss
from mempo.learners.loss import token_weights
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Row


@pytest.fixture
def sharp_policy(tiny_policy: Any) -> Any:
    """The tiny policy with a sharper distribution than a fresh one has."""
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(1.0)
    return tiny_policy


class Bench:
    """Learners of equal weights, and rows for them."""

    def __init__(self, policy: Any, codec: Codec):
        self.policy, self.codec = policy, codec

    def learner(self, reference: bool = False, **settings: Any) -> TorchLearner:
        """A learner with its own copy of the weights."""
        return TorchLearner(
            deepcopy(self.policy), self.codec, Learner(**settings), reference=reference
        )

    def rows(self, lengths: Sequence[int] = (1, 2, 3, 4, 5, 6)) -> list[Row]:
        """Prompts of 3 random tokens, outputs of the given lengths, all of them targets."""
        rng = np.random.default_rng(1)
        return [
            sampled_row(rng.integers(3, 70, 3).tolist(), rng.integers(3, 70, n).tolist(), n)
            for n in lengths
        ]

    def train_rows(
        self,
        learner: TorchLearner,
        rows: Sequence[Row],
        *,
        sampling: Sampling | None = None,
        advantage: float | None = None,
    ) -> list[TrainRow]:
        """Rows on policy, a trajectory a row; advantages random unless given."""
        rng = np.random.default_rng(2)
        old = learner.logprobs(rows, sampling)
        reference = learner.logprobs(rows, sampling, reference=True) if learner.reference else None
        weights = token_weights([r.targets for r in rows], range(len(rows)))
        return [
            TrainRow(
                row,
                rng.normal(size=row.targets)
                if advantage is None
                else np.full(row.targets, advantage),
                old[i],
                float(weights[i]),
                reference[i] if reference else None,
            )
            for i, row in enumerate(rows)
        ]

    @staticmethod
    def gradients(
        learner: TorchLearner, rows: Sequence[TrainRow], loss: Loss
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        """(the gradients of an update, caught before the optimiser sees them; its metrics)"""
        caught: list[torch.Tensor] = []

        def catch(lr: float) -> float:
            caught.extend(
                torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for p in learner.model.parameters()
            )
            learner.optimizer.zero()
            return 0.0

        learner.optimizer.step = catch  # type: ignore[method-assign]
        return caught, learner.update(rows, loss)


@pytest.fixture
def bench(sharp_policy: Any, atlas_codec: Codec) -> Bench:
    """bench.learner(...), bench.rows(...), bench.train_rows(learner, rows, ...)"""
    return Bench(sharp_policy, atlas_codec)
