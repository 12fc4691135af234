"""Small things that many tests build on. Builders are fixtures that return a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the network

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mempo.agent.protocol import information_ids, parse_step, token_span
from mempo.config import Environment
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.policies.tiny import tiny_model, tiny_tokenizer
from mempo.types import Question, Step, Trajectory

torch.set_num_threads(1)

CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' "
    "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
_CORPUS = [
    "<mem>The Phantom of the Opera was written by Gaston Leroux in Paris.</mem>",
    "<think>Which river flows through Paris? I have to search.</think>",
    "<tool_call>river through Paris</tool_call>\n<information>The Seine.</information>\n",
    "<answer>the Seine; Gaston Leroux</answer>",
] * 4


def byte_level_tokenizer() -> Any:
    """Byte-level BPE of some 400 tokens with a ChatML template, like those of Qwen and SmolLM."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="session")
def codec() -> Codec:
    """Byte-level BPE with a chat template; its padding is its end token."""
    return Codec(byte_level_tokenizer())


@pytest.fixture(scope="session")
def atlas() -> AtlasWorld:
    """A small atlas world: 10 entities, 4 attributes, 5 values."""
    return AtlasWorld(Environment(entities=10, attributes=4, values=5, reply_facts=3))


@pytest.fixture(scope="session")
def atlas_codec(atlas: AtlasWorld) -> Codec:
    """A token a word, without a chat template."""
    return Codec(tiny_tokenizer(atlas.words()))


@pytest.fixture
def tiny_policy(atlas_codec: Codec) -> Any:
    """A fresh 3-layer Qwen2 for `atlas_codec`; a test may train it."""
    return tiny_model(len(atlas_codec.tokenizer), 0, width=64)


def _question(
    answers: Sequence[Sequence[str]] = (("Paris",),), *, id: str = "q", text: str = "Where?"
) -> Question:
    return Question(id, text, len(answers), [list(a) for a in answers])


def _step(output_ids: Sequence[int] = (7, 8, 9), **fields: Any) -> Step:
    """A step of given ids; prompt [1, 2, 3] of which 2 are head, log-probs -1, no memory."""
    defaults: dict[str, Any] = {
        "prompt_ids": [1, 2, 3],
        "head_tokens": 2,
        "logprobs": [-1.0] * len(output_ids),
        "finish_reason": "stop",
        "mem_spans": [],
        "memory": None,
        "action": "tool_call",
        "action_text": "words",
        "well_formed": True,
    }
    return Step(output_ids=list(output_ids), **(defaults | fields))


def _written_step(codec: Codec, text: str, observation: str = "", **fields: Any) -> Step:
    """A step of given text, encoded and read as the agent loop does."""
    ids = codec.encode(text)
    read_text, offsets = codec.text_and_offsets(ids)
    parsed = parse_step(read_text)
    read: dict[str, Any] = {
        "mem_spans": [token_span(offsets, *parsed.memory_at)] if parsed.memory_at else [],
        "memory": parsed.memory,
        "action": parsed.action,
        "action_text": parsed.action_text,
        "well_formed": parsed.well_formed,
        "observation": observation,
        "observation_ids": information_ids(codec, observation) if observation else [],
    }
    return _step(ids, **(read | fields))


def _trajectory(
    steps: Sequence[Step], *, question: Question | None = None, rollout: int = 0, **fields: Any
) -> Trajectory:
    defaults: dict[str, Any] = {"status": "answered", "answer": "Paris"}
    return Trajectory(question or _question(), rollout, list(steps), **(defaults | fields))


@pytest.fixture(scope="session")
def make_question() -> Callable[..., Question]:
    """make_question(answers=[["Paris"]], id="q", text="Where?")"""
    return _question


@pytest.fixture(scope="session")
def make_step() -> Callable[..., Step]:
    """make_step(output_ids, **fields of Step)"""
    return _step


@pytest.fixture(scope="session")
def write_step() -> Callable[..., Step]:
    """write_step(codec, text, observation="", **fields of Step)"""
    return _written_step


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """make_trajectory(steps, question=None, rollout=0, **fields of Trajectory)"""
    return _trajectory
