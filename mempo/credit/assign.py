"""From trajectories to credit: scores and advantages of every step of an iteration.

A^T_i     = (R_i - mean_j R_j) / std_j R_j          R_i   = task reward + max(gain, 0) x bonus
A^M_{i,t} = (R^M_{i,t} - mean R^M) / std R^M        R^M   = P(answer | memory) - eps - cost
A_k       = A^T_i + w A^M_{i,t} on memory tokens    (`token_advantages`, w: `memory_weight`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Literal

import numpy as np

from mempo import own
from mempo.agent.protocol import GRAINS
from mempo.config import Memory
from mempo.credit.advantage import memory_advantage, trajectory_advantage
from mempo.credit.scoring import LogProbs, score_aliases
from mempo.policies.codec import Codec
from mempo.records import groups
from mempo.types import Trajectory

Scores = list[tuple[float, float]]  # [S] (P(answer | memory), P(answer | full history)) of a step


@dataclass
class Credit:
    """Columns of the rollout file, a value a step, in the order of trajectories and steps."""

    p_answer_mem: list[float] = field(default_factory=list)
    p_answer_full: list[float] = field(default_factory=list)
    adv_traj: list[float] = field(default_factory=list)
    adv_mem: list[float] = field(default_factory=list)
    gain_bonus: list[float] = field(default_factory=list)  # of the step's trajectory
    p_grains: list[list[float]] = field(default_factory=list)  # [grains of two][S]
    adv_grains: list[list[float]] = field(default_factory=list)
    zero_std: float = 0.0  # share of groups whose rewards carry no signal
    mean_gain_bonus: float = 0.0  # over trajectories

    def columns(self) -> dict[str, list[float]]:
        return {
            "p_answer_mem": self.p_answer_mem,
            "p_answer_full": self.p_answer_full,
            "adv_traj": self.adv_traj,
            "adv_mem": self.adv_mem,
            "gain_bonus": self.gain_bonus,
            **{f"p_answer_{name}": p for name, p in zip(GRAINS, self.p_grains, strict=False)},
            **{f"adv_{name}": a for name, a in zip(GRAINS, self.adv_grains, strict=False)},
        }


def assign_credit(
    codec: Codec,
    trajectories: Sequence[Trajectory],
    logprobs: LogProbs,
    settings: Memory,
    *,
    score: bool = True,
    full: bool = False,
    grains: int = 1,
    scale: Literal["std", "none"] = "std",
) -> Credit:
    """A^T and A^M of every step, not yet weighted (METHOD section 2).

    `score` False leaves P(answer | .) out (NaN), A^M at 0 and the gain bonus too; `full` asks for
    P(answer | full history) where A^M would do without. A^M is 0 where its weight is 0 in every
    iteration. The gain bonus is never below 0: else a rollout that does nothing would earn more
    than one that lost what it knew. With two `grains` each is scored alone, has an advantage in
    the group of its like, and takes the place of A^M on its tokens. scale: of A^T
    (`reward.scale`). A rollout without a reward (NaN) was rejected: it shifts no mean and no
    standard deviation, of memories neither, and both its advantages are 0. Trajectories of a
    question have to stand together, as the agent loop returns them.
    """
    by_question = groups(trajectories)
    full = full or settings.needs_history
    if score:
        pairs = [(g[0].question, [t.steps for t in g]) for g in by_question]
        found = score_aliases(codec, pairs, logprobs, full=full)
        scores = [[[step[:2] for step in steps] for steps in g] for g in found]
        aliases = [[[alias for *_, alias in steps] for steps in g] for g in found]
    else:
        aliases = []
        scores = [[[(nan, nan) for _ in t.steps] for t in g] for g in by_question]

    credit = Credit()
    flat, bonuses = 0, []
    for group, scored in zip(by_question, scores, strict=True):
        bonus = [settings.gain_bonus * max(gain([p for p, _ in s]), 0.0) for s in scored]
        r_traj = [t.reward + b for t, b in zip(group, bonus, strict=True)]
        size = _largest(scored)
        a_traj = trajectory_advantage(r_traj, scale, magnitude=settings.gain_bonus * size)
        a_mem = [[0.0] * len(steps) for steps in scored]
        if settings.trained:
            r_mem = [memory_rewards(t, s, settings) for t, s in zip(group, scored, strict=True)]
            a_mem = memory_advantage(r_mem, settings.group, magnitude=size)

        flat += not np.any(a_traj)
        bonuses += bonus
        for i, steps in enumerate(scored):
            credit.p_answer_mem += [p for p, _ in steps]
            credit.p_answer_full += [p for _, p in steps]
            credit.adv_traj += [float(a_traj[i])] * len(steps)
            credit.adv_mem += a_mem[i]
            credit.gain_bonus += [bonus[i]] * len(steps)
    if score and grains == 2:
        for grain in range(2):
            _assign_grain(credit, codec, by_question, scores, aliases, logprobs, settings, grain)
    credit.zero_std = flat / max(len(by_question), 1)
    credit.mean_gain_bonus = sum(bonuses) / max(len(bonuses), 1)
    return credit


def _assign_grain(
    credit: Credit,
    codec: Codec,
    by_question: Sequence[Sequence[Trajectory]],
    whole: Sequence[Sequence[Scores]],
    aliases: Sequence[Sequence[Sequence[int]]],
    logprobs: LogProbs,
    settings: Memory,
    grain: int,
) -> None:
    """Scores and advantages of one part of a two-grain memory.

    eps is that of the whole memory, so the alias that the whole memory chose is scored, too.
    """
    pairs = [(g[0].question, [t.steps for t in g]) for g in by_question]
    found = score_aliases(codec, pairs, logprobs, full=False, grain=grain, aliases=aliases)
    parts = [[[step[:2] for step in steps] for steps in g] for g in found]
    credit.p_grains.append([])
    credit.adv_grains.append([])
    for group, part, scored in zip(by_question, parts, whole, strict=True):
        rewards = []
        for t, mine, steps in zip(group, part, scored, strict=True):
            scores = [(p, eps) for (p, _), (_, eps) in zip(mine, steps, strict=True)]
            if settings.trained:
                rewards.append(memory_rewards(t, scores, settings, grain=grain))
            else:
                rewards.append([nan] * len(steps))
            credit.p_grains[grain] += [p for p, _ in mine]
        advantages = memory_advantage(rewards, settings.group, magnitude=_largest(part))
        for a in advantages:
            credit.adv_grains[grain] += a


def memory_rewards(
    trajectory: Trajectory, scores: Scores, settings: Memory, *, grain: int | None = None
) -> list[float]:
    """R^M_t = P(answer | memory) - eps - length_cost x (tokens of the memory) / 100, a step.

    eps is P(answer | full history) for 'contrast', else the constant `epsilon`; with
    `memory.function` its values take the place of P(answer | memory) - eps. NaN takes no part
    in the group's mean and std, and gets A^M = 0: a step without a memory or without its scores,
    every step of a trajectory without a reward (it is not trained), and, with `only_success`,
    of one that did not succeed. So a success is compared with successes: among them A^M says
    which memory was the better one, while A^T already says that they beat the failures.
    grain: the scores, and so the tokens, are of this part of a two-grain memory.

    Raises:
        ValueError: `memory.function` raised, or did not return a number a step.
    """
    if not isfinite(trajectory.reward) or (settings.only_success and not succeeded(trajectory)):
        return [nan] * len(scores)
    if settings.function:
        worth = _own_rewards(trajectory, scores, settings.function)
    else:
        contrast = settings.reward == "contrast"
        worth = [p_mem - (p_full if contrast else settings.epsilon) for p_mem, p_full in scores]
    rewards = []
    for step, value in zip(trajectory.steps, worth, strict=True):
        spans = step.mem_spans if grain is None else step.mem_spans[grain : grain + 1]
        tokens = sum(end - start for start, end in spans)
        rewards.append(value - settings.length_cost * tokens / 100)
    return rewards


def _own_rewards(trajectory: Trajectory, scores: Scores, path: str) -> list[float]:
    """[S] what `memory.function` says; NaN at steps without a memory, whatever it says there."""
    question, steps = trajectory.question, trajectory.steps
    if not steps:
        return []
    where = f"question {question.id}, rollout {trajectory.rollout}"
    p_mem_S, p_full_S = np.array(scores, dtype=np.float64).reshape(-1, 2).T
    said = own.call("memory.function", path, where, question, steps, p_mem_S, p_full_S)
    values = own.numbers("memory.function", path, where, said, len(steps))
    return [v if step.mem_spans else nan for v, step in zip(values, steps, strict=True)]


def succeeded(trajectory: Trajectory) -> bool:
    """Whether every step was well formed and every objective exactly right."""
    return trajectory.em == 1 and trajectory.format == 1


def gain(p_answer_S: Sequence[float]) -> float:
    """sum_t (P_t - P_{t-1}) over a trajectory's memories: the last P less the first.

    p_answer_S: P(answer | memory) a step, NaN where there is none; such a step is passed over.
    The first memory is the baseline, as nothing was remembered before it; with fewer than two
    there is no gain: 0.
    """
    known = [p for p in p_answer_S if isfinite(p)]
    return known[-1] - known[0] if known else 0.0


def _largest(scored: Sequence[Scores]) -> float:
    """The largest probability of a group, which sets the size of rounding noise."""
    return max((p for steps in scored for pair in steps for p in pair if isfinite(p)), default=0.0)
