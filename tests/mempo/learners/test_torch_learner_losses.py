"""Every loss with every aggregation in a real learner: splitting, skipping, entropy, direction."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Loss
from mempo.learners.loss import token_weights
from mempo.learners.torch_learner import TrainRow
from mempo.policies.distribution import Sampling, logprobs_of
from mempo.policies.weights import digest
from mempo.types import Row

POLICIES: list[Any] = ["ppo_clip", "gspo", "cispo"]
AGGREGATIONS: list[Any] = ["trajectory_mean", "sequence_mean", "token_mean", "constant"]
EVERY = list(product(POLICIES, AGGREGATIONS))


def off_policy(bench: Any, aggregation: str = "trajectory_mean") -> list[TrainRow]:
    """Six rows of 1 to 6 tokens of three trajectories, ratios around 1, importance around 1."""
    rng = np.random.default_rng(4)
    owners = [0, 0, 1, 1, 1, 2]
    base = bench.train_rows(bench.learner(), bench.rows())
    weights = token_weights(
        [r.row.targets for r in base], owners, aggregation=aggregation, constant=7.0
    )
    return [
        TrainRow(
            r.row,
            r.advantages,
            r.old_logprobs + rng.normal(size=r.row.targets) * 0.3,
            float(w),
            r.old_logprobs + 0.3,
            rng.uniform(0.2, 2, r.row.targets),
        )
        for r, w in zip(base, weights, strict=True)
    ]


@pytest.mark.parametrize(("policy", "aggregation"), EVERY)
def test_fault_28_micro_batches_change_neither_gradients_nor_metrics(
    bench: Any, policy: Any, aggregation: Any
) -> None:
    """Rows of 4..9 tokens, longest first: budgets that make batches of 1, of 2, of 3 and of 6."""
    loss = Loss(
        policy=policy, clip=0.1, clip_high=0.2, kl=0.05, kl_estimator="k3", entropy=0.01,
        aggregation=aggregation, importance="truncated",
    )  # fmt: skip
    batch = off_policy(bench, aggregation)
    whole, metrics = bench.gradients(bench.learner(reference=True, micro_tokens=54), batch, loss)
    scale = max(float(g.abs().max()) for g in whole)
    assert scale > 0 and 0 < metrics["clip_frac"] < 1
    for budget in (1, 18, 27):
        split, got = bench.gradients(
            bench.learner(reference=True, micro_tokens=budget), batch, loss
        )
        for a, b in zip(whole, split, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)
        assert got == pytest.approx(metrics, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("policy", "aggregation"), EVERY)
def test_fault_29_a_fully_masked_row_changes_nothing(
    bench: Any, policy: Any, aggregation: Any
) -> None:
    loss, alone = Loss(policy=policy, entropy=0.1), off_policy(bench, aggregation)
    masked = TrainRow(Row([3, 4, 5], [False] * 3), np.zeros(0), np.zeros(0), 0.0)
    weights = token_weights(
        [*(r.row.targets for r in alone), 0], [0, 0, 1, 1, 1, 2, 3], aggregation=aggregation,
        constant=7.0,
    )  # fmt: skip
    assert weights.tolist() == [*(r.weight for r in alone), 0]
    results = []
    for rows in (alone, [*alone, masked]):
        learner = bench.learner(lr=1e-2)
        results.append((learner.update(rows, loss), digest(learner.model)))
    assert results[0] == results[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_12_first_update_clips_nothing_and_ratios_are_one(bench: Any, policy: Any) -> None:
    for micro_tokens in (9, 18, 10_000):
        learner = bench.learner(micro_tokens=micro_tokens, reference=True)
        batch = bench.train_rows(learner, bench.rows((6, 6, 6, 6)))
        got = learner.update(batch, Loss(policy=policy, clip=1e-4, kl=0.1))
        assert got["clip_frac"] == 0 and abs(got["kl"]) < 1e-9
        assert got["ratio_mean"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_importance_of_a_row_weighs_its_tokens(bench: Any, policy: Any) -> None:
    """On policy the gradient is that of A rho for A: the rows find their own weights again."""
    plain = bench.train_rows(bench.learner(), bench.rows())
    rng = np.random.default_rng(6)
    rho = [rng.uniform(0.2, 2, r.row.targets) for r in plain]
    weighed = [
        TrainRow(r.row, r.advantages, r.old_logprobs, r.weight, None, i)
        for r, i in zip(plain, rho, strict=True)
    ]
    folded = [
        TrainRow(r.row, r.advantages * i, r.old_logprobs, r.weight)
        for r, i in zip(plain, rho, strict=True)
    ]
    got, _ = bench.gradients(bench.learner(micro_tokens=18), weighed, Loss(policy=policy))
    expected, _ = bench.gradients(bench.learner(micro_tokens=27), folded, Loss(policy=policy))
    scale = max(float(g.abs().max()) for g in expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_update_raises_what_was_good_and_lowers_what_was_bad(bench: Any, policy: Any) -> None:
    """Also where CISPO's loss, A log pi, is itself negative."""
    learner, rows = bench.learner(lr=1e-3), bench.rows((5, 5))
    batch = bench.train_rows(learner, rows)
    for r, a in zip(batch, (1.0, -1.0), strict=True):
        r.advantages[:] = a
    before = [x.sum() for x in learner.logprobs(rows)]
    learner.update(batch, Loss(policy=policy))
    after = [x.sum() for x in learner.logprobs(rows)]
    assert after[0] > before[0] and after[1] < before[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_19_zero_advantages_leave_the_weights_bit_identical(bench: Any, policy: Any) -> None:
    learner = bench.learner(lr=1e-2, weight_decay=0.1)
    learner.update(bench.train_rows(learner, bench.rows()), Loss(policy=policy))
    before = digest(learner.model)
    flat = bench.train_rows(learner, bench.rows(), advantage=0.0)
    assert learner.update(flat, Loss(policy=policy))["skipped"] == 1
    assert digest(learner.model) == before
    gradients, got = bench.gradients(learner, flat, Loss(policy=policy, entropy=1e-9))
    assert got["skipped"] == 0  # the bonus alone is a reason to step, and nothing else is in it
    assert max(float(g.abs().max()) for g in gradients) < 1e-6


def test_fault_31_the_entropy_bonus_has_the_gradient_of_the_entropy(bench: Any) -> None:
    """- c sum_k w_k H_k, differentiated by loops over rows; the temperature of sampling is not in
    it."""
    batch = bench.train_rows(bench.learner(), bench.rows(), advantage=0.0)
    got, _ = bench.gradients(bench.learner(micro_tokens=18), batch, Loss(entropy=0.3))
    learner = bench.learner()
    total = torch.zeros(())
    for r in batch:
        logits = learner.model(input_ids=torch.tensor([r.row.ids])).logits[0]
        for i, trained in enumerate(r.row.mask):
            if trained:
                p = logits[i - 1].softmax(-1)
                total = total - 0.3 * r.weight * -(p * p.log()).sum()
    expected = torch.autograd.grad(total, list(learner.model.parameters()))
    scale = max(float(g.abs().max()) for g in expected)
    assert scale > 1e-6
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4 * scale, rtol=1e-4)


def test_fault_31_the_bonus_raises_the_entropy_of_trained_tokens(bench: Any) -> None:
    learner = bench.learner(lr=1e-3)
    batch = bench.train_rows(learner, bench.rows(), advantage=0.0)
    values = [learner.update(batch, Loss(entropy=1.0))["entropy"] for _ in range(5)]
    assert values == sorted(values) and values[-1] > values[0] + 1e-3


@pytest.mark.parametrize(("policy", "aggregation"), EVERY)
def test_metrics_are_means_over_tokens_whatever_the_aggregation(
    bench: Any, policy: Any, aggregation: Any
) -> None:
    learner, rows = bench.learner(reference=True), bench.rows()
    weights = token_weights([r.targets for r in rows], range(6), aggregation=aggregation)
    batch = [  # every ratio e, every log-prob 0.5 above the reference
        TrainRow(r, np.ones(r.targets), o - 1, float(w), o - 0.5, np.full(r.targets, 0.5))
        for r, o, w in zip(rows, learner.logprobs(rows), weights, strict=True)
    ]
    got = learner.update(batch, Loss(policy=policy, kl=0.1))
    assert got["clip_frac"] == pytest.approx(1, abs=1e-5)
    assert got["ratio_mean"] == pytest.approx(np.e, abs=1e-4)
    assert got["kl"] == pytest.approx(0.125, abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_truncated_sampling_with_the_correction_stays_finite(bench: Any, policy: Any) -> None:
    """What was sampled from is the nucleus, what is trained the whole distribution."""
    learner, rows = bench.learner(reference=True, lr=3e-2), bench.rows()
    base = bench.train_rows(learner, rows)
    nucleus = learner.logprobs(rows, Sampling(top_p=0.5))
    batch = [
        TrainRow(r.row, r.advantages, r.old_logprobs, r.weight, r.ref_logprobs,
                 np.exp(r.old_logprobs - mu))
        for r, mu in zip(base, nucleus, strict=True)
    ]  # fmt: skip
    assert all((r.importance <= 1 + 1e-6).all() for r in batch if r.importance is not None)
    for _ in range(3):
        got = learner.update(batch, Loss(policy=policy, kl=0.1), Sampling())
        assert np.isfinite(list(got.values())).all()


def test_the_ratio_of_the_whole_distribution_is_no_truncated_one() -> None:
    """The weight of FAULTS 15 from the learner's own function: .665 / .731."""
    logits, token = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
    whole, cut = (logprobs_of(logits, token, s) for s in (Sampling(), Sampling(top_k=2)))
    assert (whole - cut).exp().item() == pytest.approx(0.910, abs=5e-4)
