"""Losses against exact enumeration of a policy over three words and at most two positions.

Word 2 ends a sequence, so there are seven of them, of one or two tokens. A batch holds each once
and weighs its tokens by the chance of drawing it, so a loss is its own expectation. The oracle
is plain Python: finite differences of the enumerated objective.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Loss
from mempo.learners.loss import Targets, policy_loss, truncated_importance

SEQUENCES: list[tuple[int, ...]] = [(2,), *((a, b) for a in (0, 1) for b in (0, 1, 2))]
LENGTHS = [len(y) for y in SEQUENCES]
RNG = np.random.default_rng(3)
REWARDS = RNG.normal(size=len(SEQUENCES))
OLD = RNG.normal(size=(3, 3))  # logits of the first position, of the second after 0 and after 1
NEW = OLD + RNG.normal(size=(3, 3)) * 0.5


def log_probs(logits: np.ndarray) -> list[list[float]]:
    """Log-probs of the tokens of each sequence, by loops."""

    def one(row: np.ndarray, word: int) -> float:
        return float(row[word]) - log(sum(exp(float(z)) for z in row))

    return [
        [one(logits[0], y[0]), *(one(logits[1 + y[0]], b) for b in y[1:])] for y in SEQUENCES
    ]  # fmt: skip


def probability(logits: np.ndarray) -> list[float]:
    return [exp(sum(lp)) for lp in log_probs(logits)]


def difference(objective: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Central finite differences, [3, 3]."""
    gradient, step = np.zeros_like(at), 1e-6
    for i in np.ndindex(at.shape):
        move = np.zeros_like(at)
        move[i] = step
        gradient[i] = (objective(at + move) - objective(at - move)) / (2 * step)
    return gradient


def expected_gradient(
    logits: np.ndarray, settings: Loss, per_token: Callable[[int], float]
) -> np.ndarray:
    """Of the loss in expectation over y ~ OLD; a token of a sequence of length n weighs
    per_token(n)."""
    z = torch.tensor(logits, requires_grad=True)
    logp = z.log_softmax(-1)
    parts = [torch.stack([logp[0, y[0]], *(logp[1 + y[0], b] for b in y[1:])]) for y in SEQUENCES]
    chance = probability(OLD)

    def spread(values: Any) -> torch.Tensor:
        return torch.tensor(np.repeat(np.asarray(values, dtype=np.float64), LENGTHS))

    targets = Targets(
        old=torch.tensor([lp for lps in log_probs(OLD) for lp in lps], dtype=torch.float64),
        advantages=spread(REWARDS),
        weights=spread([p * per_token(n) for p, n in zip(chance, LENGTHS, strict=True)]),
        rows=torch.tensor(np.repeat(np.arange(len(SEQUENCES)), LENGTHS)),
    )
    loss, _ = policy_loss(torch.cat(parts), targets, settings)
    return torch.autograd.grad(loss, z)[0].numpy()


POLICIES: list[Any] = ["ppo_clip", "gspo", "cispo"]


@pytest.mark.parametrize("policy", POLICIES)
def test_on_policy_a_constant_divisor_gives_the_gradient_of_the_expected_reward(
    policy: Any,
) -> None:
    """Dr. GRPO: sum_k A grad log pi(k), whatever the length, is grad E[R]."""

    def reward(logits: np.ndarray) -> float:
        return sum(p * r for p, r in zip(probability(logits), REWARDS, strict=True))

    got = expected_gradient(OLD, Loss(policy=policy), lambda n: 1.0)
    np.testing.assert_allclose(got, -difference(reward, OLD), atol=1e-8)


@pytest.mark.parametrize("policy", POLICIES)
def test_on_policy_a_sequence_mean_gives_that_of_the_reward_per_token(policy: Any) -> None:
    """1/|y| favours short good and long bad sequences: another objective, E[R / |y|]."""

    def per_token(logits: np.ndarray) -> float:
        return sum(p * r / n for p, r, n in zip(probability(logits), REWARDS, LENGTHS, strict=True))

    got = expected_gradient(OLD, Loss(policy=policy), lambda n: 1 / n)
    np.testing.assert_allclose(got, -difference(per_token, OLD), atol=1e-8)
    unbiased = expected_gradient(OLD, Loss(policy=policy), lambda n: 1.0)
    assert abs(got - unbiased).max() > 0.01


def clipped(ratio: float, reward: float, low: float, high: float) -> float:
    return min(ratio * reward, min(max(ratio, 1 - low), 1 + high) * reward)


@pytest.mark.parametrize("clip_high", [0.1, 0.5])
def test_off_policy_ppo_clip_has_the_gradient_of_its_objective(clip_high: float) -> None:
    """sum_y pi_old(y) 1/|y| sum_k min(r_k A, clip(r_k) A)."""

    def objective(logits: np.ndarray) -> float:
        return sum(
            p / n * clipped(exp(lp - old), r, 0.1, clip_high)
            for p, r, n, new, olds in zip(
                probability(OLD), REWARDS, LENGTHS, log_probs(logits), log_probs(OLD), strict=True
            )
            for lp, old in zip(new, olds, strict=True)
        )

    got = expected_gradient(NEW, Loss(clip=0.1, clip_high=clip_high), lambda n: 1 / n)
    np.testing.assert_allclose(got, -difference(objective, NEW), atol=1e-8)


@pytest.mark.parametrize("clip_high", [0.02, 0.5])
def test_off_policy_gspo_has_the_gradient_of_its_objective(clip_high: float) -> None:
    """sum_y pi_old(y) min(s A, clip(s) A), s = (pi(y) / pi_old(y))^(1/|y|)."""

    def objective(logits: np.ndarray) -> float:
        return sum(
            p * clipped(exp((sum(new) - sum(olds)) / n), r, 0.02, clip_high)
            for p, r, n, new, olds in zip(
                probability(OLD), REWARDS, LENGTHS, log_probs(logits), log_probs(OLD), strict=True
            )
        )

    settings = Loss(policy="gspo", clip=0.02, clip_high=clip_high)
    got = expected_gradient(NEW, settings, lambda n: 1 / n)
    np.testing.assert_allclose(got, -difference(objective, NEW), atol=1e-8)


def test_off_policy_cispo_weighs_the_log_likelihood() -> None:
    """sum_y pi_old(y) 1/|y| sum_k min(r_k, 1 + c) A log pi(k), the weight taken at NEW."""
    weights = [
        [min(exp(lp - old), 1.1) for lp, old in zip(new, olds, strict=True)]
        for new, olds in zip(log_probs(NEW), log_probs(OLD), strict=True)
    ]

    def objective(logits: np.ndarray) -> float:
        return sum(
            p / n * w * r * lp
            for p, r, n, new, ws in zip(
                probability(OLD), REWARDS, LENGTHS, log_probs(logits), weights, strict=True
            )
            for lp, w in zip(new, ws, strict=True)
        )

    got = expected_gradient(NEW, Loss(policy="cispo", clip=0.1), lambda n: 1 / n)
    np.testing.assert_allclose(got, -difference(objective, NEW), atol=1e-8)


# --- importance: the words of one position come from another distribution than the policy's

MU = np.array([0.3, 0.2, 0.5])
ADVANTAGES = np.array([1.0, -0.5, 2.0])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cap", [1e9, 1.2])
def test_importance_gives_the_gradient_under_the_policy(policy: Any, cap: float) -> None:
    """E_mu[min(pi/mu, cap) A grad log pi]: exact without a cap; with one, pi is cut to cap mu."""
    logits = np.array([2.0, 1.0, 0.0])
    pi = np.exp(logits) / np.exp(logits).sum()  # .665, .245, .090: pi/mu = 2.2, 1.2, .18
    z = torch.tensor(logits, requires_grad=True)
    logp = z.log_softmax(-1)
    rho = truncated_importance(np.log(pi), np.log(MU), cap=cap)
    targets = Targets(
        old=logp.detach(),
        advantages=torch.tensor(ADVANTAGES),
        weights=torch.tensor(MU),
        rows=torch.arange(3),
        importance=torch.tensor(rho),
    )
    loss, _ = policy_loss(logp, targets, Loss(policy=policy))
    (got,) = torch.autograd.grad(loss, z)
    drawn = np.minimum(pi, cap * MU) * ADVANTAGES
    np.testing.assert_allclose(got.numpy(), -(drawn - pi * drawn.sum()), atol=1e-12)
    if cap > 10:

        def reward(x: np.ndarray) -> float:
            return float((np.exp(x) / np.exp(x).sum() * ADVANTAGES).sum())

        np.testing.assert_allclose(got.numpy(), -difference(reward, logits), atol=1e-8)
