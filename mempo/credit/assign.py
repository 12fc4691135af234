"""From trajectories to credit: scores and advantages of every step of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal

import numpy as np

from mempo.config import Memory
from mempo.credit.advantage import memory_advantage, trajectory_advantage
from mempo.credit.scoring import LogProbs, score_questions
from mempo.policies.codec import Codec
from mempo.records import groups
from mempo.types import Trajectory


@dataclass(frozen=True)
class Credit:
    """Columns of the rollout file, a value a step, in the order of trajectories and steps."""

    p_answer_mem: list[float]
    p_answer_full: list[float]
    adv_traj: list[float]
    adv_mem: list[float]
    zero_std: float  # share of groups whose rewards carry no signal

    def columns(self) -> dict[str, list[float]]:
        return {
            "p_answer_mem": self.p_answer_mem,
            "p_answer_full": self.p_answer_full,
            "adv_traj": self.adv_traj,
            "adv_mem": self.adv_mem,
        }


def assign_credit(
    codec: Codec,
    trajectories: Sequence[Trajectory],
    logprobs: LogProbs,
    settings: Memory,
    *,
    score: bool = True,
    scale: Literal["std", "none"] = "std",
) -> Credit:
    """A^T and A^M of every step; `score` False leaves P(answer | .) out (NaN) and A^M at 0.

    scale: of A^T (`reward.scale`). A rollout without a reward (NaN) was rejected: it shifts no
    mean and no standard deviation, of memories neither, and both its advantages are 0.
    Trajectories of a question have to stand together, as the agent loop returns them.
    """
    by_question = groups(trajectories)
    full = settings.reward == "contrast"
    if score:
        pairs = [(g[0].question, [t.steps for t in g]) for g in by_question]
        scores = score_questions(codec, pairs, logprobs, full=full)
    else:
        scores = [[[(nan, nan) for _ in t.steps] for t in g] for g in by_question]

    p_mem: list[float] = []
    p_full: list[float] = []
    adv_traj: list[float] = []
    adv_mem: list[float] = []
    flat = 0
    for group, group_scores in zip(by_question, scores, strict=True):
        advantages = trajectory_advantage([t.reward for t in group], scale)
        flat += not np.any(advantages)
        rewards = [
            [p - (f if full else settings.epsilon) if isfinite(t.reward) else nan for p, f in steps]
            for t, steps in zip(group, group_scores, strict=True)
        ]
        memories = memory_advantage(rewards, settings.group)
        for t, a, steps, mems in zip(group, advantages, group_scores, memories, strict=True):
            p_mem += [p for p, _ in steps]
            p_full += [f for _, f in steps]
            adv_traj += [float(a)] * len(t.steps)
            adv_mem += mems if settings.weight > 0 else [0.0] * len(mems)
    return Credit(p_mem, p_full, adv_traj, adv_mem, flat / max(len(by_question), 1))
