"""Keys and values of rows that decode together, and of prompts to begin rows from.

A cache is transformers' own. All rows end at its last column, and what a row does not fill lies on
its left, behind a mask; so columns that no row fills are cut off there, and rows of two caches are
put together by filling up the shorter one there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


def can_join(cache: Any) -> bool:
    """Whether caches of this kind can be put together: all layers are keys and values by column."""
    layers = getattr(cache, "layers", [])
    return bool(layers) and {type(x) for x in layers} <= {DynamicLayer, DynamicSlidingWindowLayer}


def can_begin(cache: Any) -> bool:
    """Whether every layer keeps all columns, so that rows can begin from a part of a prompt."""
    return {type(x) for x in getattr(cache, "layers", [None])} == {DynamicLayer}


def select(cache: Any, rows: Sequence[int], width: int) -> None:
    """Keep `rows`, in that order and any number of times, and the last `width` columns."""
    index = torch.tensor(rows)
    if not can_join(cache):
        cache.batch_select_indices(index)
        return
    for layer in cache.layers:
        kept = min(width, layer.keys.shape[-2])
        index = index.to(layer.keys.device)
        layer.keys = layer.keys[..., layer.keys.shape[-2] - kept :, :][index]
        layer.values = layer.values[..., layer.values.shape[-2] - kept :, :][index]
        if layer.is_sliding:
            layer.cumulative_length = width


def join(cache: Any, other: Any) -> None:
    """Put the rows of `other` below those of `cache`."""
    for a, b in zip(cache.layers, other.layers, strict=True):
        width = max(a.keys.shape[-2], b.keys.shape[-2])
        a.keys = torch.cat([_widened(a.keys, width), _widened(b.keys, width)])
        a.values = torch.cat([_widened(a.values, width), _widened(b.values, width)])
        if a.is_sliding:
            a.cumulative_length = max(a.cumulative_length, b.cumulative_length)


Stem = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer, [heads, T, width]


def stem(cache: Any, row: int, tokens: int) -> Stem:
    """A copy of the last `tokens` columns of a row."""
    return [
        (layer.keys[row, :, -tokens:].clone(), layer.values[row, :, -tokens:].clone())
        for layer in cache.layers
    ]


def begin(stems: Sequence[Stem | None], tokens: Sequence[int], width: int) -> DynamicCache:
    """A cache of `width` columns, whose row i holds the first tokens[i] of stems[i] (or none)."""
    like = next(s for s in stems if s is not None)
    cache = DynamicCache()
    for number in range(len(like)):
        filled = []
        for part, (sample, *_) in enumerate(zip(like[number], strict=True)):
            heads, _, size = sample.shape
            whole = sample.new_zeros((len(stems), heads, width, size))
            for row, (known, n) in enumerate(zip(stems, tokens, strict=True)):
                if known is not None and n:
                    whole[row, :, width - n :] = known[number][part][:, :n]
            filled.append(whole)
        cache.update(filled[0], filled[1], number)
    return cache


def _widened(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 0, width - x.shape[-2], 0))
