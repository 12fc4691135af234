"""AdamW with float32 masters: exact in float32, and bfloat16 weights lose no small update."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.config import Learner
from mempo.learners.optimizer import MasterAdamW
from mempo.policies.tiny import tiny_model


@pytest.fixture
def model() -> Any:
    return tiny_model(20, 1, width=32, heads=2)


def fill_gradients(model: Any, seed: int, scale: float = 1.0) -> None:
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = (torch.randn(p.shape, generator=g) * scale).to(p.dtype)


def test_equals_torch_adamw_in_float32(model: Any) -> None:
    twin = deepcopy(model)
    ours = MasterAdamW(model, Learner(lr=1e-2, beta2=0.95, weight_decay=0.1, grad_clip=1.0))
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(4):
        fill_gradients(model, step)
        fill_gradients(twin, step)
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        theirs.step()
        assert ours.step(1e-2) == pytest.approx(norm.item(), rel=1e-6)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_the_one_before_clipping_and_clipping_is_global(
    model: Any, dtype: torch.dtype
) -> None:
    model = model.to(dtype)
    ours = MasterAdamW(model, Learner(grad_clip=0.5))
    fill_gradients(model, 0)
    by_hand = sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5
    seen: list[float] = []
    ours.adamw.register_step_pre_hook(
        lambda *_: seen.append(sum(float(m.grad.square().sum()) for m in ours.masters) ** 0.5)
    )
    assert ours.step(1e-3) == pytest.approx(by_hand, rel=1e-5)
    assert seen == pytest.approx([0.5], rel=1e-4)


def test_bfloat16_keeps_updates_that_plain_bfloat16_loses(model: Any) -> None:
    """100 steps of 1e-4 relative each: 1 % in all, though one step is below bf16's 1/256."""
    half = deepcopy(model).bfloat16()
    with torch.no_grad():
        for p in half.parameters():
            p.fill_(1.0)
    plain = deepcopy(half)
    ours = MasterAdamW(half, Learner(lr=1e-4, weight_decay=0, grad_clip=1e9))
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-4, weight_decay=0)
    for _ in range(100):
        for p, q in zip(half.parameters(), plain.parameters(), strict=True):
            p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        ours.step(1e-4)
        theirs.step()
    for p, q, master in zip(half.parameters(), plain.parameters(), ours.masters, strict=True):
        assert (q == 1.0).all()  # lost
        torch.testing.assert_close(master, torch.full_like(master, 0.99), atol=1e-5, rtol=0)
        assert torch.equal(p, master.bfloat16())  # the nearest bf16 of the master
        assert (p < 1.0).all()


def test_embeddings_have_their_own_learning_rate(model: Any) -> None:
    """Adam's first step is lr * sign(gradient), whatever the gradient's size."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    ours = MasterAdamW(model, Learner(weight_decay=0, grad_clip=1e9), embedding_lr_factor=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    ours.step(1e-2)
    for name, p in model.named_parameters():
        expected = 1e-3 if "embed_tokens" in name else 1e-2
        torch.testing.assert_close(
            before[name] - p, torch.full_like(p, expected), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(model: Any, bad: float) -> None:
    ours = MasterAdamW(model, Learner())
    before = [p.detach().clone() for p in model.parameters()]
    fill_gradients(model, 0)
    next(model.parameters()).grad[0, 0] = bad  # type: ignore[index]
    with pytest.raises(ArithmeticError, match="not finite"):
        ours.step(1e-2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not ours.adamw.state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_bit_for_bit(model: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model.to(dtype)
    settings = Learner(lr=1e-3)
    ours = MasterAdamW(model, settings, embedding_lr_factor=0.5)
    for step in range(3):
        fill_gradients(model, step)
        ours.step(1e-3)
    ours.save(tmp_path / "optimizer")
    twin = deepcopy(model)
    resumed = MasterAdamW(twin, settings, embedding_lr_factor=0.5)
    resumed.load(tmp_path / "optimizer")
    for step in range(3, 6):
        for m, o in ((model, ours), (twin, resumed)):
            fill_gradients(m, step)
            o.step(1e-3)
    for a, b in zip(ours.masters, resumed.masters, strict=True):
        assert torch.equal(a, b)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
