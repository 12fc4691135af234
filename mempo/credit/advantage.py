"""Group-relative advantages of trajectories and of their memories.

Pure functions on plain numbers. Missing values are NaN: they are left out of every mean and
standard deviation, and get the advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

_RELATIVE_STD = 1e-6


def _standardise(
    values_N: NDArray[np.float64], magnitude: float = 0.0, divide: bool = True
) -> NDArray[np.float64]:
    """(x - mean) / population std over the finite values; 0 where missing or without variance.

    A std below 1e-6 of the largest magnitude, or of `magnitude` if that is larger, is rounding
    noise, not a signal. divide False: x - mean.
    """
    finite = np.isfinite(values_N)
    out = np.zeros_like(values_N)
    if finite.sum() < 2:
        return out
    kept = values_N[finite]
    std = kept.std()
    if std <= _RELATIVE_STD * max(np.abs(kept).max(), magnitude, _RELATIVE_STD):
        return out
    out[finite] = (kept - kept.mean()) / (std if divide else 1.0)
    return out


def trajectory_advantage(
    rewards_G: ArrayLike, scale: Literal["std", "none"] = "std", *, magnitude: float = 0.0
) -> NDArray[np.float64]:
    """A^T_i = (R_i - mean_j R_j) / std_j R_j over the rollouts of one question (METHOD section 2).

    rewards_G: [G], NaN where a rollout has no reward. scale 'none': not divided by the standard
    deviation (Dr. GRPO, arXiv 2503.20783). Returns [G]. A group of one, or of equal rewards, is
    all zeros. Normalise once per trajectory, before expanding to steps: a 5-step rollout counts
    as much as a 1-step one. magnitude: see `memory_advantage`.
    """
    if scale not in ("std", "none"):
        raise ValueError(f"reward.scale: unknown value {scale!r}; 'std' or 'none'")
    return _standardise(np.asarray(rewards_G, dtype=np.float64), magnitude, scale == "std")


def memory_advantage(
    rewards: Sequence[Sequence[float]],
    group: Literal["question", "step"] = "question",
    *,
    magnitude: float = 0.0,
) -> list[list[float]]:
    """A^M_{i,t} = (R^M_{i,t} - mean R^M) / std R^M over the group; same shape back.

    rewards: per rollout of one question a list over its steps, NaN where a step has no memory.
    group 'question' pools all steps of all rollouts, 'step' the steps of equal index. magnitude:
    of the numbers that the rewards are differences of; a spread of 1e-6 of it is their rounding
    noise (two equal probabilities differ by as much), and gives 0.
    """
    flat = np.array([r for steps in rewards for r in steps], dtype=np.float64)
    match group:
        case "question":
            advantages = _standardise(flat, magnitude)
        case "step":
            index = np.array([t for steps in rewards for t in range(len(steps))])
            advantages = np.zeros_like(flat)
            for t in np.unique(index):
                advantages[index == t] = _standardise(flat[index == t], magnitude)
        case _:
            raise ValueError(f"memory.group: unknown value {group!r}; 'question' or 'step'")
    values = iter(advantages.tolist())
    return [[next(values) for _ in steps] for steps in rewards]


def token_advantages(
    length: int,
    mem_spans: Sequence[tuple[int, int]],
    adv_traj: float,
    adv_mem: float | Sequence[float],
    weight: float = 1.0,
) -> NDArray[np.float64]:
    """A_k = A^T + weight * A^M on the tokens of the step's memory, A^T on all others.

    length: tokens of the step's output (T). mem_spans: [start, end) positions, one a grain.
    adv_mem: of the whole memory, or one a grain. Returns [T].
    """
    advantages = np.full(length, adv_traj, dtype=np.float64)
    each = [adv_mem] * len(mem_spans) if isinstance(adv_mem, int | float) else adv_mem
    for (start, end), a in zip(mem_spans, each, strict=bool(mem_spans)):
        advantages[start:end] += weight * a
    return advantages
