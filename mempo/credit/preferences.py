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
    """(chosen, rejected) indices into `trajectories`, at most G / 2 pairs a question.

    The best of a group is paired with the worst, the second best with the second worst, and so
    on, as long as the first is strictly better and answered right (every objective exactly, in
    form): a path that merely failed less is no example to follow. Of equals the earlier rollout
    counts as the better one. Rollouts without a reward, or without a step, are left out.
    """
    index = {id(t): n for n, t in enumerate(trajectories)}
    pairs: list[tuple[int, int]] = []
    for group in groups(trajectories):
        known = [t for t in group if t.steps and isfinite(t.reward)]
        ranked = sorted(known, key=merit, reverse=True)  # stable: earlier rollouts first
        for i in range(len(ranked) // 2):
            chosen, rejected = ranked[i], ranked[-1 - i]
            if merit(chosen) > merit(rejected) and chosen.em == 1 and chosen.format == 1:
                pairs.append((index[id(chosen)], index[id(rejected)]))
    return pairs
