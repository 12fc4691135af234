"""The cold start's learning rate by hand."""

from __future__ import annotations

import pytest

from mempo.config import Sft
from mempo.learners.supervise import learning_rate


def test_warm_up_then_constant_then_final() -> None:
    settings = Sft(steps=6, lr=1.0, final_steps=2, final_lr=0.5, warmup=4)
    got = [learning_rate(settings, step) for step in range(8)]
    assert got == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5])


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(Sft(lr=0.3, warmup=0), 0) == 0.3
