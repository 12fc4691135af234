"""A weight of the memory at inference: logits of two prompts, mixed at every token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler
from mempo.types import Request

REQUESTS = [
    Request([3, 20, 21, 22, 23, 30], 6, ("a",), [3, 23, 30]),
    Request([4, 25, 30], 4, ("b",), [4, 30]),
    Request([5, 26], 6, ("c",)),  # nothing to take out yet
]


@pytest.fixture
def sampler(tiny_policy: Any, atlas_codec: Codec) -> TransformersSampler:
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(0.6)
    return TransformersSampler(tiny_policy, atlas_codec, stop=(), batch_size=8)


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids])).logits[0, -1].float()


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.5])
def test_every_token_is_drawn_from_the_mixed_logits(
    sampler: TransformersSampler, weight: float
) -> None:
    """Against one forward pass a token over each whole prompt, without cache or batch."""
    greedy = Sampling(0.0, memory_weight=weight)
    with torch.no_grad():
        for request, done in zip(REQUESTS, sampler.generate(REQUESTS, greedy), strict=True):
            said: list[int] = []
            for token, logp in zip(done.ids, done.logprobs, strict=True):
                with_ = logits(sampler.model, [*request.prompt_ids, *said])
                without = logits(
                    sampler.model, [*(request.without_ids or request.prompt_ids), *said]
                )
                mixed = (without + weight * (with_ - without)).log_softmax(-1)
                assert token == int(mixed.argmax())
                assert logp == pytest.approx(float(mixed[token]), abs=1e-4)
                said.append(token)


def test_the_ends_of_the_scale(sampler: TransformersSampler) -> None:
    def ids(requests: list[Request], weight: float = 1.0) -> list[list[int]]:
        return [c.ids for c in sampler.generate(requests, Sampling(memory_weight=weight))]

    plain = ids(REQUESTS)
    bare = [replace(r, prompt_ids=r.without_ids or r.prompt_ids) for r in REQUESTS]
    assert ids(REQUESTS, 1.0) == plain
    assert ids(REQUESTS, 1.0 + 1e-9) == plain
    assert ids(REQUESTS, 0.0) == ids(bare) != plain
