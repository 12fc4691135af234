"""Probe of the credit: every setting of `memory` and `reward` that was changed has an effect."""

from __future__ import annotations

from mempo.config import Experiment, Memory, Reward
from mempo.config.space import written


def check_memory(experiment: Experiment) -> str:
    """What the memory advantage of a training run will be.

    `memory.weight`, `schedule`, `reward` and `group` stand in presets that runs without a memory or
    with DPO share, so only other settings that are off by default are asked for.
    `memory.function` may stand beside weight 0, so that one setting is enough to leave A^M out of
    a comparison.

    Raises:
        ValueError: a setting that is on would be ignored; names it and the cure.
    """

    settings = experiment.memory
    remembers = experiment.agent.remembers
    options = ("function", "only_success", "length_cost", "gain_bonus")
    if not remembers:
        _refuse(settings, options, f"agent.kind {experiment.agent.kind} writes no <mem>")
    prefers = experiment.loss.policy == "dpo"
    if prefers:
        reason = "loss.policy dpo has no advantages, it prefers by the reward alone"
        _refuse(settings, options, reason)
        _refuse(experiment.reward, ("scale",), reason)
    elif remembers and not settings.trained:
        _refuse(settings, ("only_success", "length_cost"), "the weight of A^M is 0 (memory.weight)")
    if settings.schedule == "constant":
        _refuse(settings, ("final_weight",), "memory.schedule is constant")
    if settings.function:
        _refuse(settings, ("epsilon",), "memory.function is set")
    elif settings.reward == "contrast":
        _refuse(settings, ("epsilon",), "memory.reward is contrast")
    if not remembers:
        return f"no memory advantage: agent.kind is {experiment.agent.kind}"
    if prefers:
        return "no memory advantage: loss.policy is dpo, P(answer | memory) is only monitored"
    of = f" of {settings.function}" if settings.function else ""
    if settings.schedule == "constant":
        return f"A^M{of} of weight {settings.weight:g}"
    weight = f"{settings.weight:g} to {settings.final_weight:g}, {settings.schedule}"
    return f"A^M{of} of weight {weight}"


def _refuse(settings: Memory | Reward, names: tuple[str, ...], reason: str) -> None:
    section = "memory" if isinstance(settings, Memory) else "reward"
    for name in names:
        value, default = getattr(settings, name), type(settings).model_fields[name].default
        if value != default:
            raise ValueError(
                f"{section}.{name}: {written(value)} would have no effect, because {reason}; "
                f"change that, or set {section}.{name}={written(default)}"
            )
