"""Direct preference optimisation of whole trajectories (Rafailov et al. 2023, arXiv 2305.18290).

    L = - mean over pairs of log sigma(beta m)
    m = [log pi(y_w) - log ref(y_w)] - [log pi(y_l) - log ref(y_l)]

log pi(y) sums over the sampled tokens of all steps of a trajectory, each in the context that it
was sampled in. The gradient is that of sum_k c_k log pi(k) with c = -+ beta sigma(-beta m) / P, so
one pass without gradients finds the c, and a second one is split into micro-batches as any loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mempo.learners.torch_learner import TorchLearner
from mempo.policies.distribution import Sampling
from mempo.types import Row


@dataclass
class Lived:
    """A trajectory as rows, and its log-probability under the reference policy."""

    rows: list[Row]
    ref_logprob: float


def dpo_loss(
    chosen_P: ArrayLike, rejected_P: ArrayLike, *, beta: float
) -> tuple[float, NDArray[np.float64], dict[str, float]]:
    """(loss, dL / dm [P], metrics) of P pairs.

    chosen_P, rejected_P: log pi(y) - log ref(y) of the preferred trajectory and of the other.
    Metrics: `margin`, the mean of m, and `preferred_frac`, the share of pairs with m > 0.
    """
    m = np.asarray(chosen_P, dtype=np.float64) - np.asarray(rejected_P, dtype=np.float64)
    losses = np.logaddexp(0.0, -beta * m)  # - log sigma(beta m), without overflow
    slope = -beta * np.exp(-beta * m - losses) / len(m)  # - beta sigma(-beta m) / P
    metrics = {"margin": float(m.mean()), "preferred_frac": float((m > 0).mean())}
    return float(losses.mean()), slope, metrics


def dpo_update(
    learner: TorchLearner,
    lived: Mapping[int, Lived],
    pairs: Sequence[tuple[int, int]],
    *,
    beta: float,
    sampling: Sampling | None = None,
) -> dict[str, float]:
    """One optimiser step on `pairs` of trajectories; without any, none is taken.

    lived: the trajectories that the pairs name. Metrics are those of `dpo_loss`, the loss as
    `policy`, `grad_norm` and `skipped`.
    """
    if not pairs:
        return {"policy": 0.0, "grad_norm": 0.0, "skipped": 1.0}
    members = sorted({n for pair in pairs for n in pair})
    rows = [row for n in members for row in lived[n].rows]
    values = iter(learner.logprobs(rows, sampling))
    gain = {
        n: sum(float(next(values).sum()) for _ in lived[n].rows) - lived[n].ref_logprob
        for n in members
    }
    loss, slope, metrics = dpo_loss(
        [gain[w] for w, _ in pairs], [gain[r] for _, r in pairs], beta=beta
    )
    coefficient = dict.fromkeys(members, 0.0)
    for (chosen, rejected), s in zip(pairs, slope, strict=True):
        coefficient[chosen] += float(s)
        coefficient[rejected] -= float(s)
    per_row = [coefficient[n] for n in members for _ in lived[n].rows]
    norm = learner.descend(rows, per_row, sampling)
    return {**metrics, "policy": loss, "grad_norm": norm, "skipped": 0.0}
