"""Bounded dynamic sampling: groups that carry no signal make room for fresh questions.

Source: DAPO (arXiv 2503.14476), which goes on until the batch is full; here the rounds are
bounded, so that questions which are all solved, or all hopeless, never hold a run up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mempo.credit.advantage import trajectory_advantage
from mempo.credit.preferences import preference_pairs
from mempo.records import groups
from mempo.types import Question, Trajectory

Draw = Callable[[int, list[int]], Sequence[Question]]  # (round, flat groups) -> fresh questions
Run = Callable[[Sequence[Question]], Sequence[Trajectory]]  # question by question


def has_signal(group: Sequence[Trajectory]) -> bool:
    """Whether the rewards of a question's rollouts differ, so that some advantage is not 0."""
    return bool(np.any(trajectory_advantage([t.reward for t in group])))


def has_pair(group: Sequence[Trajectory]) -> bool:
    """Whether DPO finds a pair in a question's rollouts: its own kind of signal.

    Rewards that differ are none where nothing succeeded, and equal ones are where one of them
    was earned with fewer queries.
    """
    return bool(preference_pairs(group))


def resample(
    trajectories: Sequence[Trajectory],
    draw: Draw,
    run: Run,
    *,
    rounds: int,
    signal: Callable[[Sequence[Trajectory]], bool] = has_signal,
) -> tuple[list[Trajectory], list[Trajectory]]:
    """(kept, thrown away): in each of at most `rounds` rounds, flat groups are replaced.

    A group is flat where it has no `signal`.

    trajectories: question by question. `draw(r, at)` gives a question for each of the groups number
    `at` (in the order of `trajectories`) in round r = 0, 1, ...;
    those that this iteration has asked already are left out, and a group without a replacement
    stays. A replacement takes its group's place, whatever signal it carries itself. What is still
    flat after the last round is kept. The numbers of groups in and kept are equal.
    """
    kept = groups(trajectories)
    thrown: list[Trajectory] = []
    asked = {group[0].question.id for group in kept}
    for number in range(rounds):
        flat = [i for i, group in enumerate(kept) if not signal(group)]
        if not flat:
            break
        fresh = {q.id: q for q in draw(number, flat) if q.id not in asked}
        if not fresh:
            continue
        asked |= fresh.keys()
        for i, group in zip(flat, groups(run(list(fresh.values()))), strict=False):
            thrown += kept[i]
            kept[i] = group
    return [t for group in kept for t in group], thrown
