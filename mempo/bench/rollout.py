"""Rollouts of one turn: prompts in, tokens out, by each engine that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mempo.bench.race import Lap, Part, Say, race, ratio
from mempo.bench.subject import Subject, Words
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler
from mempo.types import Request

QUESTIONS, GROUP, PROMPT, OUTPUT = 4, 8, 256, 128


def engines() -> list[str]:
    """The engines that are installed here."""
    return ["transformers", *(["vllm"] if find_spec("vllm") else [])]


def sampler(subject: Subject, engine: str, *, dtype: str, tokens: int, rows: int) -> Any:
    """A sampler that never ends early, so that every arm makes the same number of tokens."""
    model = subject.model(dtype)
    if engine == "transformers":
        made: Any = TransformersSampler(model, subject.codec, stop=(), batch_size=rows)
        made.eos = set()
        return made
    from mempo.samplers.vllm import VllmSampler

    with TemporaryDirectory(prefix="mempo-bench-") as scratch:
        model.save_pretrained(scratch)
        subject.codec.tokenizer.save_pretrained(f"{scratch}/tokenizer")
        return VllmSampler(
            scratch,
            Path(scratch) / "tokenizer",
            subject.codec,
            stop=(),
            dtype=dtype,
            max_tokens=tokens,
            batch_size=rows,
            cache_gib=0,
        )


def prompts(subject: Subject, questions: int, tokens: int) -> list[list[int]]:
    words = Words(subject.codec, 0)
    return [subject.codec.encode(words(tokens)) for _ in range(questions)]


def requests(prompts_Q: Sequence[list[int]], group: int, output: int, turn: int) -> list[Request]:
    """`group` of each prompt, question after question; other draws each turn."""
    return [
        Request(prompt, output, ("bench", turn, q, g))
        for q, prompt in enumerate(prompts_Q)
        for g in range(group)
    ]


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    questions: int = QUESTIONS,
    group: int = GROUP,
    prompt: int = PROMPT,
    output: int = OUTPUT,
    dtype: str = "bfloat16",
) -> Part:
    """Tokens a second of `questions` x `group` outputs of `output` tokens each."""
    found, arms = Part(), {}
    asked = prompts(subject, questions, prompt)
    for engine in engines():
        made = sampler(
            subject, engine, dtype=dtype, tokens=prompt + output, rows=len(asked) * group
        )
        turns = iter(range(10**6))
        name = f"rollout, {engine}"

        def run(made: Any = made, turns: Any = turns, name: str = name) -> None:
            done = made.generate(requests(asked, group, output, next(turns)), Sampling())
            found.facts[f"{name}, tokens"] = sum(len(one.ids) for one in done)

        arms[name] = run
    found.laps = race(arms, rounds=rounds, say=say)
    for name, laps in found.laps.items():
        tokens = float(found.facts[f"{name}, tokens"])
        unit = [Lap(tokens, tokens)] * len(laps)
        found.ratios[f"{name.replace(', ', '_')}_tokens_per_s"] = ratio(unit, laps)
    if len(arms) == 2:
        found.compare("rollout_transformers_vs_vllm", *found.laps)
    return found
