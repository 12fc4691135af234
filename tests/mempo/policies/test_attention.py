"""Attention by groups against transformers' own, which copies keys for each query head."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mempo.policies import attention
from mempo.policies.attention import attend, attend_by_groups

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 4), key_heads=st.integers(1, 3), groups=st.integers(1, 4),
    size=st.integers(1, 3), before=st.integers(0, 9),
    mask_of=st.sampled_from(["none", "rows", "scores", "heads"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_values_are_those_of_transformers(
    batch: int, key_heads: int, groups: int, size: int, before: int, mask_of: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = before + size
    heads = key_heads * groups
    q = torch.randn(batch, heads, size, 8, generator=generator)
    k, v = torch.randn(2, batch, key_heads, total, 8, generator=generator)
    mask = None
    if mask_of != "none":
        mask = torch.rand(batch, 1, size, total, generator=generator) < 0.6
        mask[..., -1] = True
    if mask_of == "scores" and mask is not None:
        mask = torch.randn(mask.shape, generator=generator).masked_fill(~mask, float("-inf"))
    if mask_of == "heads" and mask is not None:
        mask = torch.rand(batch, heads, size, total, generator=generator) < 0.8
        mask[..., -1] = True
    module: Any = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    got, _ = attend(module, q, k, v, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(module, q, k, v, mask, scaling=0.3)
    assert got.shape == expected.shape == (batch, size, heads, 8)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_model_decodes_by_groups_as_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of unequal lengths, padded on the left, under a sliding window."""
    torch.manual_seed(0)
    model: Any = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=5)).eval()
    ids = torch.randint(3, 60, (3, 12))
    filled = torch.tensor([9, 4, 12])
    present = (torch.arange(12) >= 12 - filled[:, None]).long()
    place = (present.cumsum(-1) - 1).clamp(min=0)

    # transformers 5.24 renamed it, and later releases know the new name alone.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"

    def decode() -> torch.Tensor:
        first = model(
            input_ids=ids[:, :8], attention_mask=present[:, :8], position_ids=place[:, :8],
            use_cache=True,
        )  # fmt: skip
        cache, found = first[name], []
        for at in range(8, 12):
            out = model(
                input_ids=ids[:, at : at + 1], attention_mask=present[:, : at + 1],
                position_ids=place[:, at : at + 1], use_cache=True, **{name: cache},
            )  # fmt: skip
            found.append(out.logits[:, -1])
        return torch.stack(found)

    expected = decode()
    calls: list[int] = []
    plain = attention.grouped

    def spy(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(query.shape[2])
        return plain(query, *rest)

    monkeypatch.setattr(attention, "grouped", spy)
    attend_by_groups(model)
    torch.testing.assert_close(decode(), expected, atol=1e-5, rtol=1e-5)
    assert calls == [1] * 4 * 2  # each step, each layer


def test_a_model_that_was_asked_for_another_attention_keeps_it() -> None:
    model: Any = MistralForCausalLM._from_config(
        MistralConfig(**SMALL), attn_implementation="eager"
    )
    attend_by_groups(model)
    assert model.config._attn_implementation == "eager"


def test_a_model_that_looks_at_the_name_of_its_attention_keeps_it() -> None:
    """DeepSeek V3.2 gives its sparse mask only to what is called 'eager' or 'sdpa'."""
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    with torch.device("meta"):
        model: Any = DeepseekV32ForCausalLM(DeepseekV32Config(num_hidden_layers=1))
    assert model.config._attn_implementation == "sdpa"
    attend_by_groups(model)
    assert model.config._attn_implementation == "sdpa"
