"""Our losses and TRL's: the real `GRPOTrainer._compute_loss` on the same random input.

The trainer is made without its constructor, which wants a model, a data set and a reward; the
method gets the log-probs instead of computing them. Both are differentiated by the log-probs.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Loss
from mempo.learners.loss import Targets, token_weights, total_loss, truncated_importance

BATCH, LENGTH, MAX_LENGTH = 6, 7, 9


@dataclass
class Input:
    """[B, T] each, float64; tokens behind a row's end carry junk."""

    logp: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    sampler: torch.Tensor
    entropies: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor  # [B] or [B, T]


def random_input(seed: int, *, per_token: bool = False, spread: float = 0.4) -> Input:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, BATCH)
    mask = np.arange(LENGTH) < lengths[:, None]
    logp = -rng.exponential(size=(BATCH, LENGTH))

    def near(scale: float) -> torch.Tensor:
        noise = rng.normal(size=logp.shape) * scale
        return torch.tensor(np.where(mask, logp + noise, 5.0))

    return Input(
        torch.tensor(logp, requires_grad=True),
        near(spread),
        near(0.3),
        near(0.8),
        torch.tensor(rng.uniform(0, 3, logp.shape), requires_grad=True),
        torch.tensor(mask, dtype=torch.float64),
        torch.tensor(rng.normal(size=logp.shape if per_token else BATCH)),
    )


@pytest.fixture(scope="module")
def trainer_class() -> Any:
    with warnings.catch_warnings():  # about versions of engines that TRL would use
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer  # takes seconds

    return GRPOTrainer


def trl_loss(trainer_class: Any, x: Input, **settings: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Loss and metrics of TRL; `settings` are attributes of its trainer."""
    trainer = object.__new__(trainer_class)
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda v: v, reduce=lambda v, reduction: v, sync_gradients=True
    )
    defaults: dict[str, Any] = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "max_completion_length": MAX_LENGTH,
        "current_gradient_accumulation_steps": 1,
        "accelerator": accelerator,
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "_metrics": {"train": defaultdict(list)},
    }
    for name, value in (defaults | settings).items():
        setattr(trainer, name, value)
    trainer._entropy_bonus_enabled = trainer.entropy_coef > 0
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (x.logp, x.entropies, None)
    ids = torch.zeros(BATCH, 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": torch.zeros(BATCH, LENGTH, dtype=torch.long),
        "completion_mask": x.mask,
        "advantages": x.advantages,
        "old_per_token_logps": x.old,
        "ref_per_token_logps": x.ref,
        "num_items_in_batch": x.mask.sum(),
        # as the trainer itself computes it, with vllm_importance_sampling_mode 'token_truncate'
        "importance_sampling_ratio": ((x.old - x.sampler) * x.mask).exp().clamp(max=2.0),
    }
    return trainer._compute_loss(None, inputs), trainer._metrics["train"]


def our_loss(
    x: Input, settings: Loss, *, constant: float = MAX_LENGTH
) -> tuple[torch.Tensor, dict[str, float]]:
    """Ours, each row a trajectory of one step; weighted metrics as means over tokens."""
    mask = x.mask.bool()
    counts = mask.sum(-1)
    weights = token_weights(
        counts.tolist(), range(BATCH), aggregation=settings.aggregation, constant=constant
    )
    advantages = x.advantages if x.advantages.dim() == 2 else x.advantages[:, None].expand_as(mask)
    rho = truncated_importance(x.old[mask], x.sampler[mask], cap=settings.importance_cap)
    targets = Targets(
        old=x.old[mask],
        advantages=advantages[mask],
        weights=torch.tensor(weights).repeat_interleave(counts),
        rows=torch.arange(BATCH).repeat_interleave(counts),
        ref=x.ref[mask],
        importance=torch.tensor(rho) if settings.importance == "truncated" else None,
    )
    loss, metrics = total_loss(x.logp[mask], x.entropies[mask], targets, settings)
    total = float(targets.weights.sum())
    return loss, {name: float(value) / total for name, value in metrics.items()}


# name: (TRL's attributes, our settings, spread of the log-ratios)
SAME: dict[str, tuple[dict[str, Any], Loss, float]] = {
    "grpo": ({"loss_type": "grpo"}, Loss(aggregation="sequence_mean"), 0.4),
    "grpo-by-trajectory": ({"loss_type": "grpo"}, Loss(aggregation="trajectory_mean"), 0.4),
    "bnpo": ({"loss_type": "bnpo"}, Loss(aggregation="token_mean"), 0.4),
    "dapo-clip-higher": (
        {"loss_type": "dapo", "epsilon_high": 0.28},
        Loss(aggregation="token_mean", clip_high=0.28),
        0.4,
    ),
    "dr_grpo": ({"loss_type": "dr_grpo"}, Loss(aggregation="constant"), 0.4),
    "gspo": (
        {"importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
        Loss(policy="gspo", clip=0.03, clip_high=0.04, aggregation="sequence_mean"),
        0.1,
    ),
    "gspo-token-mean": (
        {
            "loss_type": "dapo", "importance_sampling_level": "sequence",
            "epsilon_low": 0.03, "epsilon_high": 0.04,
        },
        Loss(policy="gspo", clip=0.03, clip_high=0.04, aggregation="token_mean"),
        0.1,
    ),
    # TRL's epsilon_high of CISPO is the bound itself, ours what is added to 1
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        Loss(policy="cispo", clip_high=0.3, aggregation="token_mean"),
        0.4,
    ),
}  # fmt: skip


def compare(trainer_class: Any, x: Input, theirs: dict[str, Any], ours: Loss) -> None:
    """Equal loss, equal gradients by log-probs and entropies, not all of them zero."""
    expected, _ = trl_loss(trainer_class, x, **theirs)
    got, _ = our_loss(x, ours)
    assert got.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    for leaf in (x.logp, x.entropies):
        a, b = (torch.autograd.grad(v, leaf, retain_graph=True, allow_unused=True)[0]
                for v in (got, expected))  # fmt: skip
        if leaf is x.entropies and a is None:
            assert b is None or not b.any()
            continue
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert a.any()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SAME)
def test_loss_and_gradient_are_those_of_trl(trainer_class: Any, name: str, seed: int) -> None:
    theirs, ours, spread = SAME[name]
    compare(trainer_class, random_input(seed, spread=spread), theirs, ours)


@pytest.mark.parametrize("name", SAME)
def test_with_kl_they_are_those_of_trl(trainer_class: Any, name: str) -> None:
    """TRL's KL is k3, outside clip and importance."""
    theirs, ours, spread = SAME[name]
    ours = ours.model_copy(update={"kl": 0.3, "kl_estimator": "k3"})
    compare(trainer_class, random_input(11, spread=spread), theirs | {"beta": 0.3}, ours)


@pytest.mark.parametrize("name", SAME)
def test_with_truncated_importance_and_kl_they_are_those_of_trl(
    trainer_class: Any, name: str
) -> None:
    """With GSPO the weights are equal within a row: TRL spreads a token's weight over its row's
    gradient, ours stays with the token (the values are equal in any case)."""
    theirs, ours, spread = SAME[name]
    theirs = theirs | {"use_vllm": True, "vllm_importance_sampling_correction": True, "beta": 0.3}
    x = random_input(12, spread=spread)
    if "gspo" in name:
        x = replace(x, sampler=x.old - torch.linspace(-1, 1, BATCH)[:, None])
    assert ((x.old - x.sampler).exp() > 2)[x.mask.bool()].any()  # the cap bites
    ours = ours.model_copy(update={"importance": "truncated", "kl": 0.3, "kl_estimator": "k3"})
    compare(trainer_class, x, theirs, ours)


@pytest.mark.parametrize("name", ["grpo", "dapo-clip-higher", "dr_grpo", "cispo"])
def test_with_an_advantage_of_each_token_they_are_those_of_trl(
    trainer_class: Any, name: str
) -> None:
    """As for MemPO, whose memory tokens have an advantage of their own."""
    theirs, ours, spread = SAME[name]
    compare(trainer_class, random_input(13, per_token=True, spread=spread), theirs, ours)


def test_fault_31_the_entropy_bonus_is_that_of_trl(trainer_class: Any) -> None:
    """TRL's is a mean over tokens whatever the aggregation: ours with `token_mean`."""
    theirs, ours, spread = SAME["dapo-clip-higher"]
    ours = ours.model_copy(update={"entropy": 0.07})
    compare(trainer_class, random_input(14, spread=spread), theirs | {"entropy_coef": 0.07}, ours)


@pytest.mark.parametrize(
    ("name", "theirs_name"),
    [
        ("dapo-clip-higher", "clip_ratio/region_mean"),
        ("bnpo", "clip_ratio/region_mean"),
        ("gspo-token-mean", "clip_ratio/region_mean"),
        ("cispo", "cispo_clip_ratio"),
    ],
)
def test_metrics_are_those_of_trl(trainer_class: Any, name: str, theirs_name: str) -> None:
    """Where they mean the same. TRL counts a sequence once (GSPO: so rows of one length) and of
    CISPO's cuts those of good tokens alone (so all advantages positive)."""
    theirs, ours, spread = SAME[name]
    x = random_input(15, spread=spread)
    x = replace(x, advantages=x.advantages.abs()) if "cispo" in name else x
    x = replace(x, mask=torch.ones_like(x.mask)) if "gspo" in name else x
    _, expected = trl_loss(trainer_class, x, beta=0.3, **theirs)
    ours = ours.model_copy(update={"kl": 0.3, "kl_estimator": "k3"})
    _, got = our_loss(x, ours)
    assert 0 < got["clip_frac"] < 1
    assert got["clip_frac"] == pytest.approx(expected[theirs_name][0], abs=1e-6)
    assert got["kl"] == pytest.approx(expected["kl"][0], rel=1e-6)
    entropy = got["entropy"] / float(x.mask.sum())  # the plain sum over tokens, weights sum to 1
    assert entropy == pytest.approx(expected["entropy"][0], rel=1e-6)
