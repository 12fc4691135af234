"""Losses as pure functions: tensors in, (loss, metrics) out.

All tensors are [N] over the target tokens of one micro-batch. The weights of tokens are fixed on
the whole minibatch by `token_weights`, so a loss is a plain weighted sum and splitting a
minibatch between rows changes nothing. Metrics are weighted sums of the same kind: they add up
over micro-batches, and divided by the sum of the weights they are means over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mempo.config import Loss

Metrics = dict[str, torch.Tensor]

# e^20 is beyond every clip; more would overflow float32, and inf times an advantage of 0 is NaN.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Targets:
    """What a loss knows of the target tokens of a micro-batch, beside the policy's log-probs."""

    old: torch.Tensor  # [N] log-probs of the learner before the update
    advantages: torch.Tensor  # [N]
    weights: torch.Tensor  # [N], from `token_weights`
    rows: torch.Tensor  # [N] int64, the row (step) of each token, 0..R-1
    ref: torch.Tensor | None = None  # [N] log-probs of the reference policy
    importance: torch.Tensor | None = None  # [N], from `truncated_importance`


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
    trajectories that have any. `sequence_mean`: 1 / (M |y_r|), |y_r| the target tokens of the row
    and M the rows that have any. `token_mean`: 1 / all target tokens. `constant`: 1 / (N
    constant), whatever the trajectory's length (Dr. GRPO, arXiv 2503.20783).
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
            case "sequence_mean":
                weights = 1.0 / (max(int((tokens > 0).sum()), 1) * tokens)
            case "token_mean":
                weights = np.full(len(tokens), 1.0 / max(tokens.sum(), 1.0))
            case "constant":
                weights = np.full(len(tokens), 1.0 / (trained * constant))
            case _:
                raise ValueError(f"loss.aggregation: unknown value {aggregation!r}")
    return np.where(tokens > 0, weights, 0.0)


def truncated_importance(
    old_N: ArrayLike, sampler_N: ArrayLike, *, cap: float
) -> NDArray[np.float64]:
    """[N] min(pi_old / mu, cap): weighs a token drawn from mu as if pi_old had drawn it.

    old_N: log-probs of the learner before the update, under the distribution that is trained;
    sampler_N: those that the sampler returned, of the distribution it really sampled from. The
    cap bounds the variance and biases the weight of what the sampler drew too seldom. Source:
    truncated importance sampling (Ionides 2008) between engine and trainer.
    """
    gap = np.asarray(old_N, dtype=np.float64) - np.asarray(sampler_N, dtype=np.float64)
    return np.exp(np.minimum(gap, log(cap)))


def total_loss(
    logprobs_N: torch.Tensor, entropy_N: torch.Tensor, targets: Targets, settings: Loss
) -> tuple[torch.Tensor, Metrics]:
    """Policy loss + kl x KL to the reference - entropy x entropy, as `settings` name them.

    entropy_N: of each target's distribution; it needs a gradient only where `settings.entropy` is
    positive. Beside the weighted sums of `policy_loss` and `kl_penalty`, the metrics hold
    `policy`, the policy loss as it is minimised, and `entropy`, the plain sum over the tokens.
    """
    loss, metrics = policy_loss(logprobs_N, targets, settings)
    metrics |= {"policy": loss.detach(), "entropy": entropy_N.detach().sum()}
    if settings.kl > 0:
        assert targets.ref is not None
        kl, measured = kl_penalty(
            logprobs_N, targets.ref, targets.weights, estimator=settings.kl_estimator
        )
        loss, metrics = loss + settings.kl * kl, metrics | measured
    if settings.entropy > 0:
        loss = loss - settings.entropy * (targets.weights * entropy_N).sum()
    return loss, metrics


def policy_loss(
    logprobs_N: torch.Tensor, targets: Targets, settings: Loss
) -> tuple[torch.Tensor, Metrics]:
    """The policy loss that `settings.policy` names."""
    given = (logprobs_N, targets.old, targets.advantages, targets.weights)
    (low, high), rho = settings.clip_range, targets.importance
    match settings.policy:
        case "ppo_clip":
            return ppo_clip(*given, clip=low, clip_high=high, importance_N=rho)
        case "gspo":
            return gspo(*given, targets.rows, clip=low, clip_high=high, importance_N=rho)
        case "cispo":
            return cispo(*given, clip_high=high, importance_N=rho)
        case "dpo":
            raise ValueError("loss.policy 'dpo' compares whole trajectories: see learners/dpo.py")


def ppo_clip(
    logprobs_N: torch.Tensor,
    old_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
    importance_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """- sum_k w_k rho_k min(r_k A_k, clip(r_k, 1 - c, 1 + c_high) A_k), r = pi_theta / pi_old.

    clip_high: c_high where it is not c (clip-higher of DAPO, arXiv 2503.14476): a likelier good
    token may grow further, while nothing changes for A < 0, whose ratio is bounded below alone.
    importance_N: rho, 1 by default. `clip_frac` is the weighted share of tokens where the clipped
    branch was the smaller one, so that they have no gradient; `ratio_mean` the weighted r.
    """
    ratio = _ratio(logprobs_N - old_N)
    return _clipped(ratio, advantages_N, weights_N, clip, clip_high, importance_N)


def gspo(
    logprobs_N: torch.Tensor,
    old_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    rows_N: torch.Tensor,
    *,
    clip: float = 3e-4,
    clip_high: float | None = None,
    importance_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """PPO clip with one ratio a sequence: s_r = (pi_theta(y_r) / pi_old(y_r))^(1 / |y_r|).

    A sequence is a row (step), and a micro-batch holds whole rows. The token variant of GSPO
    (arXiv 2507.18071, eq. 13-14): s enters as a value, and the gradient of token k goes through
    its own log-prob alone. With one advantage a row, value and gradient are those of the plain
    one; with an advantage for memory tokens, only they receive it. Clips are far smaller than
    PPO's (the paper: 3e-4 and 4e-4). Metrics as in `ppo_clip`, with s for r.
    """
    gap = (logprobs_N - old_N).detach()
    rows = int(rows_N.max()) + 1 if len(rows_N) else 0
    sums = gap.new_zeros(rows).index_add(0, rows_N, gap)
    counts = gap.new_zeros(rows).index_add(0, rows_N, torch.ones_like(gap))
    mean = (sums / counts.clamp(min=1))[rows_N]
    ratio = _ratio(mean + logprobs_N - logprobs_N.detach())
    return _clipped(ratio, advantages_N, weights_N, clip, clip_high, importance_N)


def cispo(
    logprobs_N: torch.Tensor,
    old_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    *,
    clip_high: float = 0.2,
    importance_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """- sum_k w_k rho_k sg(min(r_k, 1 + c_high)) A_k log pi_theta(k): no token loses its gradient.

    sg stops the gradient. The ratio is bounded above alone, whatever the sign of A; as in the
    paper (CISPO, MiniMax-M1, arXiv 2506.13585) there is no lower bound. `clip_frac` is the
    weighted share of tokens with an advantage whose ratio was cut, `ratio_mean` the weighted r
    before it.
    """
    ratio = _ratio((logprobs_N - old_N).detach())
    weights = weights_N if importance_N is None else weights_N * importance_N
    loss = -(weights * ratio.clamp(max=1 + clip_high) * advantages_N * logprobs_N).sum()
    cut = ((ratio > 1 + clip_high) & (advantages_N != 0)).to(weights_N.dtype)
    return loss, {"clip_frac": (weights_N * cut).sum(), "ratio_mean": (weights_N * ratio).sum()}


def kl_penalty(
    logprobs_N: torch.Tensor, ref_N: torch.Tensor, weights_N: torch.Tensor, *, estimator: str
) -> tuple[torch.Tensor, Metrics]:
    """Weighted KL to the reference as a loss, from samples of the policy.

    With d = log pi - log ref: k2 = d^2 / 2, whose gradient in expectation is that of
    KL(pi || ref); k3 = exp(-d) - 1 + d, whose gradient is that of KL(ref || pi). k1 = d is a good
    estimate of KL(pi || ref) and no loss: a ValueError. Source: http://joschu.net/blog/kl-approx.html
    """
    d = logprobs_N - ref_N
    match estimator:
        case "k2":
            kl = d.square() / 2
        case "k3":
            kl = (-d).exp() - 1 + d
        case "k1":
            raise ValueError(
                "loss.kl_estimator: k1 as a loss has an expected gradient of zero; use k2 or k3"
            )
        case _:
            raise ValueError(f"loss.kl_estimator: unknown value {estimator!r}; use k2 or k3")
    loss = (weights_N * kl).sum()
    return loss, {"kl": loss.detach()}


def entropy(logits_NV: torch.Tensor) -> torch.Tensor:
    """[N] entropy in nats of each target's distribution."""
    logp = logits_NV.log_softmax(-1)
    return -torch.linalg.vecdot(logp.exp(), logp)  # without a third [N, V]


def _ratio(gap_N: torch.Tensor) -> torch.Tensor:
    return gap_N.clamp(max=_MAX_LOG_RATIO).exp()


def _clipped(
    ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    clip: float,
    clip_high: float | None,
    importance_N: torch.Tensor | None,
) -> tuple[torch.Tensor, Metrics]:
    """The clipped objective of a ratio, and its metrics."""
    weights = weights_N if importance_N is None else weights_N * importance_N
    free = ratio_N * advantages_N
    high = clip if clip_high is None else clip_high
    clipped = ratio_N.clamp(1 - clip, 1 + high) * advantages_N
    loss = -(weights * torch.minimum(free, clipped)).sum()
    cut = (clipped < free).to(weights_N.dtype)
    return loss, {
        "clip_frac": (weights_N * cut).sum(),
        "ratio_mean": (weights_N * ratio_N.detach()).sum(),
    }
