"""The model and the tokens that are measured with.

Tokens are random words of a vocabulary as large as the model's, a token a word, so that lengths
are exact whatever the model; no time depends on which they are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mempo.agent.protocol import information_ids
from mempo.policies.codec import Codec
from mempo.policies.tiny import tiny_tokenizer
from mempo.types import Question, Step

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 100_000.0,
}  # fmt: skip
TINY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 10_000.0,
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What is measured: a model without its weights' type, and its tokens."""

    name: str  # for people: which weights
    folder: str  # of the weights; "" where they are random
    shape: dict[str, Any]  # of a random one
    codec: Codec

    def model(self, dtype: str) -> Any:
        """A fresh copy in 'float32' or 'bfloat16', the same each time."""
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

        kind = getattr(torch, dtype)
        if self.folder:
            model: Any = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=kind, attn_implementation="sdpa", use_safetensors=True
            )
        else:
            config = LlamaConfig(
                **self.shape, max_position_embeddings=8192, tie_word_embeddings=True
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = LlamaForCausalLM(config).to(kind)
        for settings in (model.config, model.generation_config):
            settings.bos_token_id = settings.eos_token_id = self.codec.eos_id
            settings.pad_token_id = self.codec.pad_id
        return model.eval()


def subject(name: str = "") -> Subject:
    """`name`: a model folder, 'random' (of SmolLM2-135M's shape) or 'tiny'.

    By default models/smollm2, where `mempo fetch smollm2` has put it, else 'random'.
    """
    folder = name or ("models/smollm2" if Path("models/smollm2").is_dir() else "random")
    if folder in ("random", "tiny"):
        shape = TINY if folder == "tiny" else SMOLLM2
        said = "random weights, " + ("a tiny shape" if folder == "tiny" else "SmolLM2-135M's shape")
        return Subject(said, "", shape, _codec(shape["vocab_size"]))
    if not (Path(folder) / "config.json").is_file():
        raise ValueError(
            f"--model {folder}: there is no model folder; give one, 'random' or 'tiny'"
        )
    from transformers import AutoConfig

    return Subject(folder, folder, {}, _codec(AutoConfig.from_pretrained(folder).vocab_size))


def _codec(vocabulary: int) -> Codec:
    fixed = len(tiny_tokenizer([]))
    return Codec(tiny_tokenizer([f"w{i}" for i in range(vocabulary - fixed)]))


class Words:
    """Draws texts of exactly so many tokens, the same for the same seed."""

    def __init__(self, codec: Codec, seed: int):
        self._count = len(codec.tokenizer) - len(tiny_tokenizer([]))
        self._random = random.Random(seed)

    def __call__(self, tokens: int) -> str:
        return " ".join(f"w{self._random.randrange(self._count)}" for _ in range(tokens))


@dataclass(frozen=True)
class Sizes:
    """Tokens of what an agent reads and writes."""

    head: int = 128  # system prompt and question
    memory: int = 60
    said: int = 54  # in a step, beside the memory and its tags
    reply: int = 80  # with its tags; a step adds 200 to the history
    answer: int = 12
    spread: float = 0.0  # what an agent writes and reads is up to this share longer or shorter


SIZES = Sizes()


def lived(
    codec: Codec, *, steps: int, rollouts: int, sizes: Sizes, seed: int = 0
) -> tuple[Question, list[list[Step]]]:
    """A question and the steps of its rollouts: each reads the head and what the last one left."""
    words, draw = Words(codec, seed), random.Random(seed)
    head = codec.encode(words(sizes.head))
    question = Question(f"q{seed}", words(8), 1, [[words(sizes.answer)]])
    empty = len(information_ids(codec, ""))

    def rollout() -> list[Step]:
        done: list[Step] = []
        before: Sequence[int] = ()
        for _ in range(steps):
            longer = 1 + draw.uniform(-sizes.spread, sizes.spread)
            memory, said, told = (
                max(1, round(longer * n)) for n in (sizes.memory, sizes.said / 2, sizes.reply)
            )
            call, reply = words(said), words(max(told - empty, 0))
            ids = codec.encode(
                f"<mem>{words(memory)}</mem><think>{words(said)}</think><tool_call>{call}</tool_call>"
            )
            step = Step(
                prompt_ids=[*head, *before],
                head_tokens=len(head),
                output_ids=ids,
                logprobs=[-1.0] * len(ids),
                finish_reason="stop",
                mem_spans=[(1, 1 + memory)],
                memory="",
                action="tool_call",
                action_text=call,
                well_formed=True,
                observation=reply,
                observation_ids=information_ids(codec, reply),
            )
            done.append(step)
            before = [*step.output_ids, *step.observation_ids]
        return done

    return question, [rollout() for _ in range(rollouts)]
