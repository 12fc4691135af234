"""Attention in which query heads that share a key head are further queries of it.

transformers copies keys and values for each query head where there is a mask. Decoding, where
there is one query a head and all the keys so far, is little but that copy.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "mempo_grouped"  # as transformers knows it


def grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """[B, size, heads, head width] of queries [B, heads, size, head width].

    key, value: [B, key heads, T, head width]; mask: [B or 1, 1, groups size, T], what is added to
    the scores, or which count, once for each query head of a group.
    """
    batch, heads, size, width = query.shape
    rows = query.reshape(batch, key.shape[1], -1, width)
    out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, size, -1).transpose(1, 2)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention by torch; of one query a head by groups. Without dropout."""
    groups = query.shape[1] // key.shape[1]
    of_heads = settings.get("position_bias") is not None or (
        attention_mask is not None and attention_mask.shape[1] > 1
    )
    if query.shape[2] > 1 or groups == 1 or of_heads:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    mask = None if attention_mask is None else attention_mask.expand(-1, -1, groups, -1)
    return grouped(query, key, value, mask, settings.get("scaling")), None


def attend_by_groups(model: Any) -> None:
    """Let a model that uses torch's attention decode by groups."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa" and not asks_for_torch(model):
        model.set_attn_implementation(NAME)


def asks_for_torch(model: Any) -> bool:
    """Whether the model's code does something else where its attention is not torch's by name.

    DeepSeek V3.2 does: its sparse mask goes to attention that is called 'eager' or 'sdpa' alone.
    """
    return '"sdpa"' in inspect.getsource(sys.modules[type(model).__module__])
