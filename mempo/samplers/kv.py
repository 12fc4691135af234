"""Keys and values of rows that decode together, and of prompts to begin rows from.

A cache is transformers' own; the layers of one that decodes grow in place. All rows end at its last
column, and what a row does not fill lies on its left, behind a mask; so columns that no row fills
are cut off there, and rows of two caches are put together by filling up the shorter one there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

FREE = 32  # columns that a cache grows by, at least


class PreallocatedLayer(DynamicLayer):
    """Keys and values with free columns behind them, so that a step does not copy all before it."""

    _whole: tuple[torch.Tensor, torch.Tensor] | None = None  # with the free columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As transformers' layer: the new columns go behind the others."""
        assert self.keys is not None and self.values is not None
        n = self.keys.shape[-2]
        stop = n + key_states.shape[-2]
        if self._whole is None or stop > self._whole[0].shape[-2]:
            columns = stop + max(FREE, n // 8)
            self._whole = _with_room(self.keys, columns), _with_room(self.values, columns)
        keys, values = self._whole
        keys[..., n:stop, :] = key_states
        values[..., n:stop, :] = value_states
        self.keys, self.values = keys[..., :stop, :], values[..., :stop, :]
        return self.keys, self.values

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold these in place of the old ones."""
        self._whole = None
        self.keys, self.values = keys, values


def preallocate(cache: Any) -> None:
    """Let a cache that can be joined grow in place; layers with a sliding window stay as they are.

    One that rows can begin from must not: `can_begin`.
    """
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            made = cache.layers[number] = PreallocatedLayer()
            vars(made).update(vars(layer))


def can_join(cache: Any) -> bool:
    """Whether caches of this kind can be put together: all layers are keys and values by column."""
    layers = getattr(cache, "layers", [])
    known = {DynamicLayer, PreallocatedLayer, DynamicSlidingWindowLayer}
    return bool(layers) and {type(x) for x in layers} <= known


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
        start = layer.keys.shape[-2] - kept
        _put(layer, layer.keys[..., start:, :][index], layer.values[..., start:, :][index])
        if layer.is_sliding:
            layer.cumulative_length = width


def join(cache: Any, other: Any) -> None:
    """Put the rows of `other` below those of `cache`."""
    for a, b in zip(cache.layers, other.layers, strict=True):
        width = max(a.keys.shape[-2], b.keys.shape[-2])
        keys = torch.cat([_widened(a.keys, width), _widened(b.keys, width)])
        _put(a, keys, torch.cat([_widened(a.values, width), _widened(b.values, width)]))
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


def _put(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(layer, PreallocatedLayer):
        layer.put(keys, values)
    else:
        layer.keys, layer.values = keys, values


def _with_room(x: torch.Tensor, columns: int) -> torch.Tensor:
    whole = x.new_empty((*x.shape[:-2], columns, x.shape[-1]))
    whole[..., : x.shape[-2], :] = x
    return whole


def _widened(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 0, width - x.shape[-2], 0))
