"""The sampler computes a shared prompt once, and lets rows enter at any time: nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from conf.load import load
from mempo.agent.protocol import STOP_STRINGS
from mempo.agent.rollout import run_trajectories
from mempo.environments import make_world
from mempo.environments.world import World
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.loading import load_codec, load_model
from mempo.policies.weights import save_weights
from mempo.samplers import hf
from mempo.samplers.hf import TransformersSampler
from mempo.types import Completion, Question, Request

SMALL: dict[str, Any] = {
    "vocab_size": 78, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
MODELS = {
    "grouped queries": LlamaConfig(**SMALL),
    "sliding window": MistralConfig(sliding_window=4, **SMALL),
    "learned positions": GPT2Config(
        vocab_size=78, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(MODELS[request.param]).eval()


def sampler_of(model: Any, codec: Codec, batch_size: int = 16) -> TransformersSampler:
    return TransformersSampler(model, codec, stop=(), batch_size=batch_size)


def group(prompt: Sequence[int], name: str, count: int = 8) -> list[Request]:
    return [Request(list(prompt), 1 + (5 * i) % 12, (name, i)) for i in range(count)]


def alone(model: Any, codec: Codec, requests: Sequence[Request], s: Sampling) -> list[Completion]:
    """Each with a sampler that has never seen another."""
    return [sampler_of(model, codec).generate([r], s)[0] for r in requests]


def same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.ids, a.finish_reason) == (b.ids, b.finish_reason)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """Tokens of each pass through the model, padding left out."""
    passes: list[int] = []

    def count(_: Any, __: Any, given: dict[str, Any]) -> None:
        columns = given["input_ids"].shape[1]
        passes.append(int(given["attention_mask"][:, -columns:].sum()))

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    yield passes
    hook.remove()


PROMPT = [3, 9, 4, 11, 20, 33, 41, 5, 6, 7]


def test_a_group_s_prompt_is_computed_once_and_its_rows_are_those_of_the_prompt_alone(
    model: Any, atlas_codec: Codec
) -> None:
    asked = [*group(PROMPT, "a"), *group(PROMPT[3:], "b", 4), *group([9], "c", 1)]
    sampler = sampler_of(model, atlas_codec)
    sampler.generate(group([5], "probe", 1), Sampling())
    with counted(model) as passes:
        done = sampler.generate(asked, Sampling(0.9))
    assert passes[0] == 10 + 7 + 1  # the tokens of each prompt, once
    assert [c.cached_tokens for c in done] == [0, *[10] * 7, 0, *[7] * 3, 0]
    same(done, alone(model, atlas_codec, asked, Sampling(0.9)))
    assert len({tuple(c.ids) for c in done}) > 8  # with draws of their own


def test_what_begins_with_a_group_s_prompt_begins_from_it(model: Any, atlas_codec: Codec) -> None:
    """As the second steps of a group do; a window forgets a prompt's beginning, and computes it."""
    sampler = sampler_of(model, atlas_codec)
    sampler.generate(group(PROMPT, "a"), Sampling())
    tails = [[20 + i] * (1 + 3 * i) for i in range(4)]  # of 1, 4, 7 and 10 tokens
    asked = [Request([*PROMPT, *t], 5, ("next", len(t))) for t in tails]
    asked += [Request(PROMPT[:4], 5, ("short",)), Request(PROMPT, 5, ("again",))]
    with counted(model) as passes:
        done = sampler.generate(asked, Sampling())
    same(done, alone(model, atlas_codec, asked, Sampling()))
    cached = [c.cached_tokens for c in done]
    if model.config.model_type == "mistral":
        assert cached == [0] * 6
    else:  # all compute the 10 tokens that the longest has to, what a shorter has of the stem less
        assert cached == [1, 4, 7, 10, 0, 0]
    assert passes[0] == sum(len(r.prompt_ids) for r in asked) - sum(cached)


def test_prompts_that_are_dropped_meanwhile_still_serve_who_began_from_them(
    model: Any, atlas_codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four second steps, in passes of their own, where no more than two prompts can be kept."""
    monkeypatch.setattr(hf, "PREFILL_TOKENS", 12)
    monkeypatch.setattr(hf, "STEM_TOKENS", 25)
    sampler = sampler_of(model, atlas_codec, batch_size=32)
    firsts = [[i, *PROMPT] for i in (12, 13)]
    sampler.generate([r for i, p in enumerate(firsts) for r in group(p, str(i))], Sampling())
    asked = [r for i, p in enumerate(firsts) for r in group([*p, 50 + i, *PROMPT], f"next {i}")]
    same(sampler.generate(asked, Sampling()), alone(model, atlas_codec, asked, Sampling()))


def test_a_rollout_that_was_given_up_leaves_nothing_behind(model: Any, atlas_codec: Codec) -> None:
    sampler = sampler_of(model, atlas_codec)
    for number, request in enumerate(group(PROMPT, "given up")):
        sampler.submit(number, request, Sampling())
    sampler.poll()
    sampler.drop(list(range(8)))
    assert sampler.poll() == []
    again = group(PROMPT[2:], "again", 3)
    same(sampler.generate(again, Sampling()), alone(model, atlas_codec, again, Sampling()))


def test_fault_36_new_weights_forget_the_prompts_of_the_old(
    atlas_codec: Codec, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(MODELS["grouped queries"]).eval()
    other = deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1 * torch.randn_like(p))
    save_weights(other, tmp_path / "other.safetensors")
    sampler = sampler_of(model, atlas_codec)
    sampler.generate(group(PROMPT, "a"), Sampling())
    later = [Request([*PROMPT, 8], 6, ("later", i)) for i in range(3)]
    assert sampler.generate(later[:1], Sampling())[0].cached_tokens == 10
    sampler.load(tmp_path / "other.safetensors")
    done = sampler.generate(later, Sampling())
    assert done[0].cached_tokens == 0
    same(done, alone(other, atlas_codec, later, Sampling()))


def test_weights_do_not_change_while_a_request_runs(atlas_codec: Codec, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_config(MODELS["grouped queries"]).eval()
    save_weights(model, tmp_path / "same.safetensors")
    sampler = sampler_of(model, atlas_codec)
    sampler.submit(0, Request(PROMPT, 3, ("a",)), Sampling())
    with pytest.raises(RuntimeError, match="new weights came while requests still run"):
        sampler.load(tmp_path / "same.safetensors")
    sampler.poll()
    with pytest.raises(RuntimeError, match="new weights came while requests still run"):
        sampler.load(tmp_path / "same.safetensors")
    while not sampler.poll():
        pass
    sampler.load(tmp_path / "same.safetensors")


@settings(max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6))
def test_rows_enter_at_any_time_and_are_what_they_are_alone(
    request: pytest.FixtureRequest, steps: list[int], batch_size: int
) -> None:
    """`steps`: how many new requests come before each poll; later ones continue earlier prompts."""
    codec = request.getfixturevalue("atlas_codec")
    name = list(MODELS)[len(steps) % len(MODELS)]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(MODELS[name]).eval()
    sampler = sampler_of(model, codec, batch_size)
    asked: list[Request] = []
    done: dict[int, Completion] = {}
    for count in steps:
        for _ in range(count):
            n = len(asked)
            prompt = PROMPT[: 1 + n % 10] if n % 3 else [*PROMPT, *range(3, 3 + n % 7)]
            asked.append(Request(prompt, 1 + n % 9, ("n", n)))
            sampler.submit(n, asked[-1], Sampling())
        done |= dict(sampler.poll())
    while len(done) < len(asked):
        done |= dict(sampler.poll())
    assert sampler.poll() == []
    same([done[n] for n in range(len(asked))], alone(model, codec, asked, Sampling()))


def test_kept_prompts_are_bounded(atlas_codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    from mempo.samplers import hf

    monkeypatch.setattr(hf, "STEM_TOKENS", 15)
    model: Any = AutoModelForCausalLM.from_config(MODELS["grouped queries"]).eval()
    sampler = sampler_of(model, atlas_codec)
    for first in (3, 4):
        sampler.generate(group([first, *PROMPT[1:]], "a", 2), Sampling())
    found = [
        sampler.generate([Request([first, *PROMPT[1:], 5], 1, ("n",))], Sampling())[0]
        for first in (3, 4)
    ]
    assert [c.cached_tokens for c in found] == [0, 10]  # the older made room


class Waiting:
    """The atlas, whose tool answers about one question only when `released`, or after a while."""

    waits = True

    def __init__(self, atlas: World, slow: str):
        self.atlas, self.slow = atlas, slow
        self.released = threading.Event()
        self.in_time: list[bool] = []

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[Any]:
        if questions[0].id == self.slow:
            self.in_time.append(self.released.wait(60))
        return self.atlas.reply(questions, queries)

    def questions(self, *_: Any, **__: Any) -> list[Question]:
        raise AssertionError("the loop is given its questions")

    def max_steps(self, question: Question) -> int:
        return self.atlas.max_steps(question)


def test_a_slow_tool_call_holds_up_no_other_row() -> None:
    """The shipped policy, greedy: all other questions are answered while one waits."""
    e = load("demo")
    codec = load_codec(e.policy, e.environment)
    sampler = TransformersSampler(
        load_model(e.policy, codec), codec, stop=STOP_STRINGS, batch_size=8
    )
    atlas = make_world(e.environment, lambda text: text)
    questions = atlas.questions("train", 4, objectives=2, key=(0,))
    world = Waiting(atlas, questions[0].id)

    def progress(done: int, of: int) -> None:
        if done >= 3:
            world.released.set()

    def lived(world: World) -> list[list[list[int]]]:
        lives = run_trajectories(
            world, sampler, codec, questions, agent=e.agent, rollout=e.rollout, reward=e.reward,
            group_size=1, sampling=Sampling(0.0), key=("k",), progress=progress,
        )  # fmt: skip
        return [[s.output_ids for s in t.steps] for t in lives]

    waited = lived(world)
    assert world.in_time and all(world.in_time)
    assert waited == lived(atlas) and len(waited[0]) > 1
