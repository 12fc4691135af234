"""The sampler: draws, log-probs, stops and limits; nothing depends on the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from mempo.agent.protocol import STOP_STRINGS
from mempo.config import Learner
from mempo.draws import generator
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler, _sample
from mempo.types import Request

Make = Callable[..., TransformersSampler]


@pytest.fixture
def make(tiny_policy: Any, atlas_codec: Codec) -> Make:
    """make(batch_size=8): a sampler over the tiny policy, all over the same weights."""
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(1.0)  # a sharper distribution than a fresh policy's

    def build(batch_size: int = 8) -> TransformersSampler:
        return TransformersSampler(
            tiny_policy, atlas_codec, stop=STOP_STRINGS, batch_size=batch_size
        )

    return build


def requests(count: int = 9) -> list[Request]:
    """Prompts of 1 to 5 tokens, limits of 1 to 12."""
    rng = np.random.default_rng(0)
    return [
        Request(rng.integers(3, 70, 1 + i % 5).tolist(), 1 + (5 * i) % 12, ("test", i))
        for i in range(count)
    ]


def next_probs(model: Any, ids: Sequence[int], s: Sampling) -> dict[int, float]:
    """Token -> probability after temperature, top-k and top-p, in plain Python."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)])).logits[0, -1].double() / s.divisor
    p = logits.softmax(-1).tolist()
    order = sorted(range(len(p)), key=lambda i: -p[i])[: s.top_k or len(p)]
    total, mass, kept = sum(p[i] for i in order), 0.0, []
    for i in order:
        if mass >= s.top_p:
            break
        kept.append(i)
        mass += p[i] / total
    total = sum(p[i] for i in kept)
    return {i: p[i] / total for i in kept}


# --- draws


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.5), Sampling(top_k=2), Sampling(2.0, top_p=0.8)]
)
def test_frequencies_are_the_probabilities(sampling: Sampling) -> None:
    """10,000 equally spaced draws: each token's share is its probability to one draw."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    n = 10_000
    tokens, logps = _sample(logits.repeat(n, 1), (np.arange(n) + 0.5) / n, sampling)
    p = next_probs(lambda input_ids: SimpleNamespace(logits=logits[None, None]), [0], sampling)
    shares = np.bincount(tokens, minlength=4) / n
    np.testing.assert_allclose(shares, [p.get(i, 0.0) for i in range(4)], atol=1.5 / n)
    np.testing.assert_allclose(logps, [log(p[t]) for t in tokens], atol=1e-6)


def test_random_draws_pass_a_chi_square_test() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    total = exp(2) + exp(1) + 1
    n = 20_000
    tokens, _ = _sample(logits.repeat(n, 1), np.random.default_rng(3).random(n), Sampling())
    expected = np.array([exp(2), exp(1), 1]) / total * n
    chi2 = ((np.bincount(tokens, minlength=3) - expected) ** 2 / expected).sum()
    assert chi2 < 13.8  # 2 degrees of freedom: p > .001


@given(st.floats(0, 1, exclude_max=True), st.lists(st.floats(-20, 20), min_size=3, max_size=9))
def test_a_draw_never_leaves_the_truncated_set(u: float, values: list[float]) -> None:
    logits = torch.tensor([values], dtype=torch.float32)
    for sampling in (Sampling(top_k=1), Sampling(top_p=0.5), Sampling(top_k=2, top_p=0.9)):
        _, (logp,) = _sample(logits, np.array([u]), sampling)
        assert np.isfinite(logp)


def test_the_extreme_draws_take_the_first_and_the_last_token_of_the_set() -> None:
    logits = torch.tensor([[-90.0, 1.0, 0.0, -90.0]]).repeat(2, 1)  # the ends have no mass
    tokens, _ = _sample(logits, np.array([0.0, 1 - 2**-53]), Sampling(top_k=2))
    assert tokens == [1, 2]


def test_greedy_takes_the_likeliest_with_its_log_prob_at_temperature_one(make: Make) -> None:
    sampler = make()
    for r, done in zip(requests(), sampler.generate(requests(), Sampling(0.0)), strict=True):
        ids = list(r.prompt_ids)
        for token, logp in zip(done.ids, done.logprobs, strict=True):
            p = next_probs(sampler.model, ids, Sampling())
            assert token == max(p, key=p.__getitem__)
            assert logp == pytest.approx(log(p[token]), abs=1e-4)
            ids.append(token)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(top_k=4), Sampling(0.9, top_p=0.7)]
)
def test_fault_11_every_token_follows_its_draw_and_has_the_log_prob_of_the_real_distribution(
    make: Make, sampling: Sampling
) -> None:
    """Each token recomputed alone: inverse transform of the draw that its key prescribes."""
    sampler = make()
    for r, done in zip(requests(), sampler.generate(requests(), sampling), strict=True):
        ids = list(r.prompt_ids)
        draws = generator(*r.key).random(r.max_tokens)
        for at, (token, logp) in enumerate(zip(done.ids, done.logprobs, strict=True)):
            p = next_probs(sampler.model, ids, sampling)
            assert logp == pytest.approx(log(p[token]), abs=1e-4)
            below = sum(v for i, v in p.items() if i < token)
            assert below - 1e-5 <= draws[at] <= below + p[token] + 1e-5
            ids.append(token)


def test_the_same_key_gives_the_same_draws_whatever_the_batch(make: Make) -> None:
    whole = make(16).generate(requests(), Sampling())
    assert len({tuple(c.ids) for c in whole}) > 5
    backwards = make(16).generate(requests()[::-1], Sampling())[::-1]
    for others in (make(1).generate(requests(), Sampling()),
                   make(4).generate(requests(), Sampling()), backwards):  # fmt: skip
        for a, b in zip(whole, others, strict=True):
            assert (a.ids, a.finish_reason) == (b.ids, b.finish_reason)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_another_key_gives_other_draws(make: Make) -> None:
    first, second, third = make().generate(
        [Request([3, 4], 12, ("a",)), Request([3, 4], 12, ("b",)), Request([3, 4], 12, ("a",))],
        Sampling(),
    )
    assert first.ids != second.ids
    assert first.ids == third.ids


def test_a_longer_limit_only_adds_tokens(make: Make) -> None:
    short, long = (make().generate([Request([3, 4], n, ("a",))], Sampling())[0] for n in (3, 9))
    assert long.ids[:3] == short.ids


_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(vocab_size=78, tie_word_embeddings=False, **_SMALL),
        MistralConfig(vocab_size=78, sliding_window=4, **_SMALL),
        GPT2Config(vocab_size=78, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2),
    ],
    ids=["grouped queries, untied head", "sliding window", "learned positions"],
)
def test_sampler_and_learner_agree_on_other_architectures(atlas_codec: Codec, config: Any) -> None:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    sampler = TransformersSampler(model, atlas_codec, stop=STOP_STRINGS, batch_size=8)
    sampling = Sampling(0.8)
    done = sampler.generate(requests(), sampling)
    learner = TorchLearner(model, atlas_codec, Learner(micro_tokens=40))
    rows = [
        sampled_row(r.prompt_ids, c.ids, len(c.ids)) for r, c in zip(requests(), done, strict=True)
    ]
    for ours, c in zip(learner.logprobs(rows, sampling), done, strict=True):
        np.testing.assert_allclose(ours, c.logprobs, atol=1e-4)
        assert len(set(c.logprobs)) == len(c.logprobs)  # nothing trivially equal


# --- stops and limits


def test_fault_34_each_request_has_its_own_limit(make: Make) -> None:
    done = make().generate(requests(), Sampling())
    for r, c in zip(requests(), done, strict=True):
        assert len(c.ids) == len(c.logprobs) <= r.max_tokens
        assert (c.finish_reason == "length") <= (len(c.ids) == r.max_tokens)
    assert {len(c.ids) for c in done if c.finish_reason == "length"} >= {1, 6, 11}


def test_no_requests_no_completions(make: Make) -> None:
    assert make().generate([], Sampling()) == []


def test_a_stop_string_in_the_prompt_does_not_stop(atlas_codec: Codec, make: Make) -> None:
    prompt = atlas_codec.encode("<answer>nothing</answer>")
    (done,) = make().generate([Request(prompt, 3, ("a",))], Sampling())
    assert done.finish_reason == "length" or done.ids[-1] in atlas_codec.encode("</answer>")
    assert len(done.ids) >= 1
