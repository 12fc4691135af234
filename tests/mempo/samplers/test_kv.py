"""A cache that grows in place, against transformers' own, which copies itself at each step."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from mempo.samplers import kv

LAYERS, HEADS, WIDTH = 2, 3, 4


def columns(rows: int, count: int, generator: torch.Generator) -> list[tuple[torch.Tensor, ...]]:
    shape = (2, rows, HEADS, count, WIDTH)
    return [tuple(torch.randn(shape, generator=generator)) for _ in range(LAYERS)]


def cache_of(parts: list[tuple[torch.Tensor, ...]], *, grows: bool) -> Any:
    cache = DynamicCache()
    for number, (keys, values) in enumerate(parts):
        cache.update(keys, values, number)
    if grows:
        kv.preallocate(cache)
        assert {type(layer) for layer in cache.layers} == {kv.PreallocatedLayer}
    return cache


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 99), free=st.integers(1, 4))
def test_whatever_happens_it_holds_what_a_plain_cache_holds(
    data: st.DataObject, seed: int, free: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    first = columns(3, 5, generator)
    plain, growing = cache_of(first, grows=False), cache_of(first, grows=True)
    before, kv.FREE = kv.FREE, free
    try:
        for what in data.draw(st.lists(st.sampled_from(["step", "select", "join"]), max_size=14)):
            rows, width = plain.layers[0].keys.shape[0], plain.get_seq_length()
            if what == "step":
                for number, (keys, values) in enumerate(columns(rows, 1, generator)):
                    expected = plain.update(keys, values, number)
                    got = growing.update(keys, values, number)
                    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            elif what == "select":
                kept = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=3))
                narrow = data.draw(st.integers(1, width))
                for cache in (plain, growing):
                    kv.select(cache, kept, narrow)
            else:
                other = columns(2, data.draw(st.integers(1, 9)), generator)
                for cache in (plain, growing):
                    kv.join(cache, cache_of(other, grows=cache is growing))
            assert kv.can_join(growing) and growing.get_seq_length() == plain.get_seq_length()
            for a, b in zip(growing.layers, plain.layers, strict=True):
                assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)
    finally:
        kv.FREE = before


def test_a_thousand_steps_copy_what_is_there_a_few_times() -> None:
    generator = torch.Generator().manual_seed(0)
    cache = cache_of(columns(1, 8, generator), grows=True)
    places: set[int] = set()
    for _ in range(1000):
        for number, (keys, values) in enumerate(columns(1, 1, generator)):
            cache.update(keys, values, number)
        layer = cache.layers[0]
        assert isinstance(layer, kv.PreallocatedLayer) and layer._whole is not None
        places.add(layer._whole[0].shape[-2])
    assert 10 < len(places) < 40  # free columns are an eighth of the filled ones
