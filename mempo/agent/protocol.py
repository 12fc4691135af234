"""The words of the protocol: tags, prompts, and how a step is read.

    <mem> ... </mem><think> ... </think> then <tool_call> ... </tool_call> or <answer> ... </answer>

The environment's reply stands between <information> and </information> (METHOD: the published
protocol of MemPO). Rendering works on token ids: a step's own tokens are put back exactly as
they were sampled, and only the text around them is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Action, Question

STOP_STRINGS = ("</tool_call>", "</answer>")
ANSWER_OPEN = "<answer>"

_TASK = (
    "Answer the question, or several joined with '; ' in their order. Search with "
    "<tool_call>words</tool_call>; the result comes back in <information></information>. "
)
SYSTEM_PROMPTS = {
    "self_memory": _TASK
    + "Earlier steps are forgotten: begin each step with <mem>all facts you need</mem>"
    "<think>what is missing</think>, then search or give <answer>the answer</answer>.",
    "react": _TASK + "Begin each step with <think>what is missing</think>, then search or give "
    "<answer>the answer</answer>.",
}


@dataclass(frozen=True)
class ParsedStep:
    """What one step's text says. `memory_at` is the [start, end) of the memory's characters."""

    memory: str | None
    memory_at: tuple[int, int] | None
    action: Action
    action_text: str
    well_formed: bool


_BLOCK = {
    name: re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL)
    for name in ("mem", "think", "tool_call", "answer")
}
_TAG = re.compile(r"</?(?:mem|think|tool_call|answer|information)>")
_STEP = {
    memory: re.compile(
        (r"\s*<mem>.*?</mem>" if memory else "")
        + r"\s*<think>.*?</think>\s*<(tool_call|answer)>.*?</\1>\s*",
        re.DOTALL,
    )
    for memory in (True, False)
}


def parse_step(text: str, *, memory: bool = True) -> ParsedStep:
    """Read a step. `memory`: the agent has to write a <mem>.

    The action is the first complete <tool_call> or <answer> outside <mem> and <think>, so an
    answer that is only thought about does not count. A step is well formed if it consists of the
    blocks of the protocol, each once and in order, with nothing but white space around them and
    no tag inside them. What follows the action (the rest of a token that ended in the stop
    string) is not the step's text.
    """
    outside = text
    memory_text, memory_at = None, None
    # A memory that is only thought about is none; positions stay where thoughts are blanked.
    found = _BLOCK["mem"].search(_BLOCK["think"].sub(lambda m: " " * len(m.group()), text))
    if found:
        memory_at = found.span(1)
        memory_text = text[slice(*memory_at)].strip()
    for name in ("mem", "think"):  # blanked, so that positions stay
        outside = _BLOCK[name].sub(lambda m: " " * len(m.group()), outside)
    actions = [
        (m.start(), name, m)
        for name in ("tool_call", "answer")
        for m in [_BLOCK[name].search(outside)]
        if m
    ]
    if not actions:
        return ParsedStep(memory_text, memory_at, "none", "", False)
    _, action, match = min(actions)
    if memory_at and memory_at[0] > match.start():
        memory_text, memory_at = None, None  # what follows the action is not the step's text
    action_text = match.group(1).strip()
    step = text[: match.end()]
    tags = _TAG.findall(step)
    well_formed = (
        _STEP[memory].fullmatch(step) is not None
        and len(tags) == (6 if memory else 4)
        and (not memory or bool(memory_text))
        and bool(action_text)
    )
    kind: Action = "tool_call" if action == "tool_call" else "answer"
    return ParsedStep(memory_text, memory_at, kind, action_text, well_formed)


def token_span(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """[first, last) of the tokens with at least one character in [start, end).

    offsets: [T] characters of each token. Empty where no character lies between.
    """
    inside = [i for i, (a, b) in enumerate(offsets) if max(a, start) < min(b, end)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def head_ids(codec: Codec, agent: Agent, question: Question) -> list[int]:
    """System prompt and question up to where the policy begins to write.

    The chat template is applied once, here; what the policy wrote never passes through it, so
    no template can drop or rewrite an earlier step.
    """
    system = agent.kind if agent.prompt == "short" else SYSTEM_PROMPTS[agent.kind]
    if not codec.tokenizer.chat_template:
        return codec.encode(f"{system}\n{question.text}\n")
    text = codec.tokenizer.apply_chat_template(
        [{"role": "system", "content": system}, {"role": "user", "content": question.text}],
        tokenize=False,
        add_generation_prompt=True,
    )
    return codec.encode(text)


def information_ids(codec: Codec, reply: str) -> list[int]:
    """A tool's reply as it follows the step that asked for it, its glue included."""
    return codec.encode(f"\n<information>{reply}</information>\n")


def memory_block_ids(codec: Codec, output_ids: Sequence[int], span: tuple[int, int]) -> list[int]:
    """A sampled memory in its tags: <mem> ... </mem>, ready to follow a head.

    The memory's own tokens stay as sampled. Only a token that reaches over a tag (">The", "</")
    is replaced by the encoding of its part inside the memory.
    """
    text, offsets = codec.text_and_offsets(output_ids)
    at = parse_step(text, memory=False).memory_at
    if at is None:
        raise ValueError("memory_block_ids: the step has no <mem> ... </mem>")
    first, last = span
    start, end = at
    left = right = ""
    if first < last and offsets[first][0] < start:
        left, first = text[start : min(offsets[first][1], end)], first + 1
    if first < last and offsets[last - 1][1] > end:
        right, last = text[max(offsets[last - 1][0], start) : end], last - 1
    inner = list(output_ids[first:last])
    if not inner:
        return codec.encode(f"<mem>{left}{right}</mem>")
    return [*codec.encode("<mem>" + left), *inner, *codec.encode(right + "</mem>")]
