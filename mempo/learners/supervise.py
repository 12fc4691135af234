"""The learning rate of the cold start."""

from __future__ import annotations

from mempo.config import Sft


def learning_rate(settings: Sft, step: int) -> float:
    """Linear warm-up to `lr`, constant for `steps`, then `final_lr` for `final_steps`."""
    peak = settings.lr if step < settings.steps else settings.final_lr
    return peak * min(1.0, (step + 1) / max(settings.warmup, 1))
