"""Losses as pure functions: tensors in, (loss, metrics) out.

All tensors are [N] over the target tokens of one micro-batch. The weights of tokens are fixed on
the whole minibatch by `token_weights`, so a loss is a plain weighted sum and splitting a
minibatch changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

Metrics = dict[str, torch.Tensor]


def token_weights(
    tokens_R: Sequence[int],
    trajectory_R: Sequence[int],
    *,
    aggregation: str = "trajectory_mean",
    constant: float = 1000.0,
) -> np.ndarray:
    """[R] weight of each target token of row r (METHOD: 1/N sum_i 1/|tau_i| sum_k).

    tokens_R: target tokens of a row (step); trajectory_R: the trajectory each row belongs to.
    `trajectory_mean`: 1 / (N |tau_i|), |tau_i| all target tokens of the trajectory and N the
    trajectories that have any. `token_mean`: 1 / all target tokens. `constant`: 1 / (N
    constant), whatever the trajectory's length (Dr. GRPO).
    Rows without targets weigh 0.
    """
    tokens, owner = np.asarray(tokens_R, dtype=np.float64), np.asarray(trajectory_R)
    _, owner = np.unique(owner, return_inverse=True)
    per_trajectory = np.bincount(owner, weights=tokens) if len(tokens) else np.zeros(0)
    trained = max(int((per_trajectory > 0).sum()), 1)
    with np.errstate(divide="ignore"):
        match aggregation:
            case "trajectory_mean":
                weights = 1.0 / (trained * per_trajectory[owner])
            case "token_mean":
                weights = np.full(len(tokens), 1.0 / max(tokens.sum(), 1.0))
            case "constant":
                weights = np.full(len(tokens), 1.0 / (trained * constant))
            case _:
                raise ValueError(f"loss.aggregation: unknown value {aggregation!r}")
    return np.where(tokens > 0, weights, 0.0)


def ppo_clip(
    logprobs_N: torch.Tensor,
    old_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    *,
    clip: float = 0.2,
) -> tuple[torch.Tensor, Metrics]:
    """- sum_k w_k min(r_k A_k, clip(r_k, 1 - c, 1 + c) A_k), r = pi_theta / pi_old.

    Metrics are weighted sums too, so they add up over micro-batches: `clip_frac` is the weighted
    share of tokens where the clipped branch was the smaller one.
    """
    ratio = (logprobs_N - old_N).exp()
    free = ratio * advantages_N
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantages_N
    loss = -(weights_N * torch.minimum(free, clipped)).sum()
    cut = (clipped < free).float()
    return loss, {"clip_frac": (weights_N * cut).sum().detach()}


def kl_penalty(
    logprobs_N: torch.Tensor, ref_N: torch.Tensor, weights_N: torch.Tensor, *, estimator: str
) -> torch.Tensor:
    """Weighted KL to the reference as a loss, from samples of the policy.

    With d = log pi - log ref: k2 = d^2 / 2, whose gradient in expectation is that of
    KL(pi || ref); k3 = exp(-d) - 1 + d, whose gradient is that of KL(ref || pi).
    (k1 = d has an expected gradient of zero and is not offered as a loss.)
    """
    d = logprobs_N - ref_N
    match estimator:
        case "k2":
            kl = d.square() / 2
        case "k3":
            kl = (-d).exp() - 1 + d
        case _:
            raise ValueError(f"loss.kl_estimator: unknown value {estimator!r}")
    return (weights_N * kl).sum()


def entropy(logits_NV: torch.Tensor) -> torch.Tensor:
    """[N] entropy in nats of each target's distribution."""
    logp = logits_NV.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)
