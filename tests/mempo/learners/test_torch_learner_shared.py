"""Updates with shared prefixes are those of padded rows, whatever the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Loss
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.distribution import Sampling
from mempo.types import Row

LOSSES = {
    "ppo_clip": Loss(),
    "clip_high": Loss(clip_high=0.28),
    "gspo": Loss(policy="gspo"),
    "cispo": Loss(policy="cispo"),
    "kl k2": Loss(kl=0.1),
    "kl k3": Loss(kl=0.1, kl_estimator="k3"),
    "entropy": Loss(entropy=0.1),
    "importance": Loss(importance="truncated"),
}


def family() -> list[Row]:
    """Two questions; siblings that begin alike, one of them twice, and a chain of three steps."""
    rng = np.random.default_rng(3)

    def some(n: int) -> list[int]:
        return rng.integers(3, 70, n).tolist()

    rows = []
    for _ in range(2):
        head, begun = some(12), some(2)
        tails = [[*begun, *some(n)] for n in (1, 4, 6)]
        rows += [sampled_row(head, t, len(t)) for t in [*tails, tails[0]]]
        history = head
        for n in (5, 3, 4):
            said = some(n)
            rows.append(sampled_row(history, said, n))
            history = history + said + some(2)
    return rows


def learners(bench: Any, **settings: Any) -> tuple[TorchLearner, TorchLearner]:
    """(one that shares, one that pads), of equal weights."""
    shared, padded = (bench.learner(reference=True, **settings) for _ in range(2))
    assert shared.shared
    padded.shared = False
    return shared, padded


def assert_equal(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_those_of_padded_rows(bench: Any, name: str, checkpointing: bool) -> None:
    loss, noise = LOSSES[name], np.random.default_rng(4)
    shared, padded = learners(bench, micro_tokens=60, activation_checkpointing=checkpointing)
    batch = []
    for row in bench.train_rows(padded, family()):  # off policy, so that every branch is taken
        gap = noise.normal(scale=0.2, size=(3, row.row.targets))
        batch.append(
            replace(
                row,
                old_logprobs=row.old_logprobs + gap[0],
                ref_logprobs=row.ref_logprobs + gap[1],
                importance=np.exp(gap[2]) if loss.corrected else None,
            )
        )
    got, metrics = bench.gradients(shared, batch, loss)
    expected, others = bench.gradients(padded, batch, loss)
    assert_equal(got, expected)
    assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6)
    before = padded.tokens - sum(len(row.ids) for row in family())  # less the log-probs above
    assert shared.tokens < 0.6 * before


@pytest.mark.parametrize("sampling", [None, Sampling(0.7, top_k=5)])
def test_log_probs_equal_those_of_padded_rows(bench: Any, sampling: Sampling | None) -> None:
    shared, padded = learners(bench, micro_tokens=40)
    for a, b in zip(
        shared.logprobs(family(), sampling), padded.logprobs(family(), sampling), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_descent_and_maximum_likelihood_equal_those_of_padded_rows(bench: Any) -> None:
    rows, rng = family(), np.random.default_rng(5)
    coefficients = rng.normal(size=len(rows)).tolist()
    shared, padded = learners(bench, lr=1e-3, weight_decay=0.0)
    assert shared.descend(rows, coefficients) == pytest.approx(
        padded.descend(rows, coefficients), rel=1e-5
    )
    shared, padded = learners(bench, micro_tokens=60)
    assert shared.supervise(rows, 1e-3) == pytest.approx(padded.supervise(rows, 1e-3), rel=1e-5)


def test_values_do_not_depend_on_how_rows_are_batched(bench: Any) -> None:
    rows = family()
    whole = bench.learner(micro_tokens=10_000).logprobs(rows)
    for budget in (1, 30, 60):
        for a, b in zip(bench.learner(micro_tokens=budget).logprobs(rows), whole, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_the_pass_itself_has_the_old_log_probs(bench: Any, name: str) -> None:
    loss = LOSSES[name]
    learner, other = learners(bench, micro_tokens=60)
    other.shared = True
    given = bench.train_rows(learner, family())
    if loss.corrected:
        given = [replace(row, importance=np.full(row.row.targets, 0.7)) for row in given]
    expected, before = bench.gradients(learner, given, loss)
    seen: list[list[np.ndarray]] = []
    other.optimizer.step = lambda lr: 0.0  # type: ignore[method-assign]
    metrics = other.update(
        [replace(row, old_logprobs=None) for row in given], loss, None, seen.append
    )
    for p, gradient in zip(other.model.parameters(), expected, strict=True):
        assert torch.equal(torch.zeros_like(p) if p.grad is None else p.grad, gradient)
    assert {**metrics, "grad_norm": 0.0} == {**before, "grad_norm": 0.0}
    assert metrics["ratio_mean"] == pytest.approx(1.0)
    for got, row in zip(seen[0], given, strict=True):
        np.testing.assert_array_equal(got, row.old_logprobs)


def test_a_check_that_raises_prevents_the_step(bench: Any) -> None:
    learner = bench.learner(lr=1e-2)
    rows = bench.train_rows(learner, [*family(), Row([1, 2], [False, False])])
    before = [p.clone() for p in learner.model.parameters()]

    def check(seen: list[np.ndarray]) -> None:
        assert [len(values) for values in seen] == [row.row.targets for row in rows]
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        learner.update(rows, Loss(), None, check)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert all(p.grad is None for p in learner.model.parameters())
