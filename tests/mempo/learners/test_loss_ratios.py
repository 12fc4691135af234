"""GSPO and CISPO by hand and against naive loops; what is chosen by the settings."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import Loss
from mempo.learners.loss import Targets, cispo, gspo, policy_loss, ppo_clip, total_loss

grid = st.floats(-2, 2).map(lambda x: round(x, 3))
token = st.tuples(grid, grid, grid, st.floats(0, 1).map(lambda x: round(x, 3)), st.integers(0, 3))
tokens = st.lists(token, min_size=1, max_size=16)


def t(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def split(columns: list[tuple]) -> tuple[torch.Tensor, ...]:
    """Log-probs, old, advantages, weights, rows; log-probs want a gradient."""
    logp, old, adv, weight, row = (list(c) for c in zip(*columns, strict=True))
    return t(logp).requires_grad_(), t(old), t(adv), t(weight), torch.tensor(row)


# --- GSPO


def test_gspo_by_hand() -> None:
    """Rows of two tokens, log-ratios .1 and .3, and of one, -.5: s = e^.2 (cut at 1.1), e^-.5."""
    logp = t([0.1, 0.3, -0.5]).requires_grad_()
    rows = torch.tensor([0, 0, 1])
    loss, metrics = gspo(logp, t([0, 0, 0]), t([1, -1, 1]), t([1, 1, 1]), rows, clip=0.1)
    # min terms: 1.1 (cut), -e^.2, e^-.5: the sign of a token's own advantage decides
    assert loss.item() == pytest.approx(-(1.1 - exp(0.2) + exp(-0.5)))
    assert metrics["clip_frac"].item() == 1
    assert metrics["ratio_mean"].item() == pytest.approx(2 * exp(0.2) + exp(-0.5))
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [0, exp(0.2), -exp(-0.5)], atol=1e-12)


@given(tokens, st.floats(0.01, 0.5), st.floats(0.01, 2))
def test_gspo_equals_a_naive_loop(columns: list[tuple], clip: float, high: float) -> None:
    logp, old, adv, weight, rows = split(columns)
    loss, metrics = gspo(logp, old, adv, weight, rows, clip=clip, clip_high=high)
    expected = share = 0.0
    for _, _, a, w, row in columns:
        gaps = [lp - o for lp, o, _, _, r in columns if r == row]
        s = exp(sum(gaps) / len(gaps))
        clipped = min(max(s, 1 - clip), 1 + high)
        expected -= w * min(s * a, clipped * a)
        share += w * (clipped * a < s * a)
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    assert metrics["clip_frac"].item() == pytest.approx(share, abs=1e-9)


@given(tokens, st.floats(0.01, 0.5))
def test_gspo_with_one_advantage_a_row_has_the_gradient_of_the_sequence_ratio(
    columns: list[tuple], clip: float
) -> None:
    """The plain objective, sum_r |y_r| w_r min(s_r A_r, clip(s_r) A_r), through s itself."""
    first = {row: (a, w) for _, _, a, w, row in reversed(columns)}
    logp, old, _, _, rows = split(columns)
    adv, weight = (t([first[r][i] for r in rows.tolist()]) for i in (0, 1))
    (got,) = torch.autograd.grad(gspo(logp, old, adv, weight, rows, clip=clip)[0], logp)
    plain = t(0.0)
    for row, (a, w) in first.items():
        s = (logp - old)[rows == row].mean().exp()
        length = int((rows == row).sum())
        plain = plain - length * w * torch.minimum(s * a, s.clamp(1 - clip, 1 + clip) * a)
    (expected,) = torch.autograd.grad(plain, logp)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-9)


def test_gspo_keeps_the_memory_advantage_on_the_memory() -> None:
    """Only token 0 is memory; no other token of the row may feel its advantage."""
    logp = t([-1.0, -2.0, -3.0]).requires_grad_()
    rows = torch.tensor([0, 0, 0])
    loss, _ = gspo(logp, t([-1.1, -2.1, -3.1]), t([2, 0, 0]), t([1, 1, 1]), rows, clip=0.3)
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-2 * exp(0.1), 0, 0], atol=1e-12)


# --- CISPO


def test_cispo_by_hand() -> None:
    """Ratios 1.5 and 0.5, cap 1.2: the weight is bounded above for both signs, below for none."""
    logp = t([log(1.5), log(1.5), log(0.5), log(0.5), log(1.5)]).requires_grad_()
    adv = t([1, -1, 1, -1, 0])
    loss, metrics = cispo(logp, t([0] * 5), adv, t([1] * 5), clip_high=0.2)
    terms = [1.2 * log(1.5), -1.2 * log(1.5), 0.5 * log(0.5), -0.5 * log(0.5), 0]
    assert loss.item() == pytest.approx(-sum(terms))
    assert metrics["clip_frac"].item() == 2  # the token without advantage loses nothing
    assert metrics["ratio_mean"].item() == pytest.approx(5.5)
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-1.2, 1.2, -0.5, 0.5, 0], atol=1e-12)


@given(tokens, st.floats(0.01, 2))
def test_cispo_never_takes_a_tokens_gradient(columns: list[tuple], high: float) -> None:
    logp, old, adv, weight, _ = split(columns)
    loss, _ = cispo(logp, old, adv, weight, clip_high=high)
    (gradient,) = torch.autograd.grad(loss, logp)
    expected = [-w * min(exp(lp - o), 1 + high) * a for lp, o, a, w, _ in columns]
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-9)


# --- all of them


def targets(columns: list[tuple], **more: Any) -> tuple[torch.Tensor, Targets]:
    logp, old, adv, weight, rows = split(columns)
    return logp, Targets(old, adv, weight, rows, **more)


COLUMNS = [(-1.0, -1.4, 1.0, 0.2, 0), (-2.0, -1.0, -1.0, 0.3, 0), (-0.5, -1.5, 2.0, 0.5, 1)]


def test_the_settings_name_the_loss_and_its_clips() -> None:
    logp, given_ = targets(COLUMNS)
    plain = (logp, given_.old, given_.advantages, given_.weights)
    expected = {
        ("ppo_clip", 0.0): ppo_clip(*plain, clip=0.1),
        ("ppo_clip", 0.3): ppo_clip(*plain, clip=0.1, clip_high=0.3),
        ("gspo", 0.0): gspo(*plain, given_.rows, clip=0.1),
        ("gspo", 0.3): gspo(*plain, given_.rows, clip=0.1, clip_high=0.3),
        ("cispo", 0.0): cispo(*plain, clip_high=0.1),
        ("cispo", 0.3): cispo(*plain, clip_high=0.3),
    }
    for (name, high), (loss, metrics) in expected.items():
        settings = Loss(policy=name, clip=0.1, clip_high=high)  # type: ignore[arg-type]
        got, measured = policy_loss(logp, given_, settings)
        assert got.item() == loss.item() and measured == metrics
    assert len({loss.item() for loss, _ in expected.values()}) == 6


@pytest.mark.parametrize("policy", ["ppo_clip", "gspo", "cispo"])
def test_on_policy_all_have_the_policy_gradient_and_clip_nothing(policy: Any) -> None:
    logp, given_ = targets([(lp, lp, a, w, r) for lp, _, a, w, r in COLUMNS])
    loss, metrics = policy_loss(logp, given_, Loss(policy=policy))
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-0.2, 0.3, -1.0], atol=1e-12)
    assert metrics["clip_frac"].item() == 0
    assert metrics["ratio_mean"].item() == pytest.approx(1)


@pytest.mark.parametrize("policy", ["ppo_clip", "gspo", "cispo"])
def test_importance_scales_each_tokens_gradient(policy: Any) -> None:
    on_policy = [(lp, lp, a, w, r) for lp, _, a, w, r in COLUMNS]
    logp, given_ = targets(on_policy, importance=t([0.5, 2.0, 0.0]))
    loss, metrics = policy_loss(logp, given_, Loss(policy=policy))
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-0.1, 0.6, 0], atol=1e-12)
    assert metrics["ratio_mean"].item() == pytest.approx(1)


def test_the_whole_loss_by_hand() -> None:
    """Policy + 0.1 KL (k2) - 0.01 entropy, all with the weights of the tokens; parts as metrics."""
    logp, given_ = targets(COLUMNS, ref=t([-1.5, -2.0, -0.5]))
    h = t([1.0, 2.0, 3.0])
    settings = Loss(policy="cispo", kl=0.1, entropy=0.01)
    loss, metrics = total_loss(logp, h, given_, settings)
    policy, _ = policy_loss(logp, given_, settings)
    kl, bonus = 0.2 * 0.125, 0.2 * 1 + 0.3 * 2 + 0.5 * 3
    assert loss.item() == pytest.approx(policy.item() + 0.1 * kl - 0.01 * bonus)
    assert metrics["policy"].item() == policy.item()
    assert metrics["kl"].item() == pytest.approx(kl)
    assert metrics["entropy"].item() == 6  # the plain sum
    assert set(metrics) == {"policy", "kl", "entropy", "clip_frac", "ratio_mean"}


@pytest.mark.parametrize("policy", ["ppo_clip", "gspo", "cispo"])
def test_no_tokens_no_loss(policy: Any) -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    rows = torch.zeros(0, dtype=torch.int64)
    loss, metrics = total_loss(
        empty, empty, Targets(empty, empty, empty, rows, ref=empty),
        Loss(policy=policy, kl=0.1, entropy=0.1),
    )  # fmt: skip
    assert loss.item() == 0 and all(m.item() == 0 for m in metrics.values())


def test_gspo_alone_clips_where_its_paper_does() -> None:
    """Two rows of ratio e^.001 > 1 + 4e-4: both are cut, which 0.2 would never do."""
    old = torch.zeros(4)
    logp = old + 0.001
    targets = Targets(old, torch.ones(4), torch.full((4,), 0.25), torch.tensor([0, 0, 1, 1]))
    loss, metrics = policy_loss(logp, targets, Loss(policy="gspo"))
    assert float(metrics["clip_frac"]) == 1.0
    assert float(loss) == pytest.approx(-1.0004, abs=1e-6)
