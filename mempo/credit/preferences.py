"""Pairs of trajectories of one question of which the first is preferred, for DPO.

A trajectory is better if it earned more; of equal ones, the one that asked its store less often:
a query that was needed pays through the answer, one that was not only costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from mempo.records import groups
from mempo.types import Trajectory


def merit(trajectory: Trajectory) -> tuple[float, int]:
    """(reward, - queries): what makes one trajectory of a question better than another."""
    return trajectory.reward, -sum(step.action == "query" for step in trajectory.steps)


def preference_pairs(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """(chosen, rejected) indices into `trajectories`, at most G pairs a question.

    Chosen are paths that answered right (every objective exactly, in form): one that merely failed
    less is no example to follow. The best of them is paired with the worst of the others, the
    second best with the second worst, and so on: it is good to ask when the answer hangs on it. And
    among those that were right the best with the worst, and so on inwards: it is good not to ask
    in vain. Only strictly better ones make a pair; of equals the earlier rollout counts as the
    better one. Rollouts without a reward, or without a step, are left out.
    """
    index = {id(t): n for n, t in enumerate(trajectories)}
    pairs: list[tuple[int, int]] = []
    for group in groups(trajectories):
        known = [t for t in group if t.steps and isfinite(t.reward)]
        ranked = sorted(known, key=merit, reverse=True)  # stable: earlier rollouts first
        right = [t for t in ranked if t.em == 1 and t.format == 1]
        others = [t for t in ranked if not (t.em == 1 and t.format == 1)]
        both = [*zip(right, reversed(others), strict=False)]
        both += [(right[i], right[-1 - i]) for i in range(len(right) // 2)]
        pairs += [(index[id(a)], index[id(b)]) for a, b in both if merit(a) > merit(b)]
    return pairs
