"""The words of the protocol: tags, prompts, and how a step is read.

    <mem> ... </mem><think> ... </think> then <tool_call> ... </tool_call> or <answer> ... </answer>

The environment's reply stands between <information> and </information> (METHOD: the published
protocol of MemPO). With two grains a memory is <summary> ... </summary><facts> ... </facts>.
Rendering works on token ids: a step's own tokens are put back exactly as they were sampled, and
only the text around them is encoded.
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
GRAINS = ("summary", "facts")  # of a memory of two grains, in their order
SUMMARISE = "summarise"  # the harness's word before a step that has to write a summary
STORE_KINDS = ("segments", "summaries")  # what a query to an external memory asks for

_TASK = (
    "Answer the question, or several joined with '; ' in their order. Search with "
    "<tool_call>words</tool_call>; the result comes back in <information></information>. "
)
_STEP_OF_ACTIONS = (
    "Begin each step with <think>what is missing</think>, then search or give "
    "<answer>the answer</answer>."
)
_PROMPTS = {
    "self_memory": "Earlier steps are forgotten: begin each step with <mem>{memory}</mem>"
    "<think>what is missing</think>, then search or give <answer>the answer</answer>.",
    "react": _STEP_OF_ACTIONS,
    "truncation": "Older steps are forgotten. " + _STEP_OF_ACTIONS,
    "summary": "When told to summarise, begin the step with <mem>{memory}</mem>; what came before "
    "is then forgotten. " + _STEP_OF_ACTIONS,
    "retrieval": "Of older steps those that seem to matter are shown again. " + _STEP_OF_ACTIONS,
    "external": "Older results go into a store; <store></store> lists what it holds. At any point "
    "<query>segments words</query> brings a whole result back and <query>summaries words</query> "
    "a short form of several, in <retrieved></retrieved>; then go on where you were. "
    + _STEP_OF_ACTIONS,
}
_MEMORY = {
    1: "all facts you need",
    2: "<summary>what was done</summary><facts>all facts you need</facts>",
}


def system_prompt(agent: Agent) -> str:
    """The protocol in words, or the one word that names the agent."""
    if agent.prompt == "short":
        return agent.kind
    return _TASK + _PROMPTS[agent.kind].replace("{memory}", _MEMORY[agent.grains])


def protocol_words(agent: Agent) -> str:
    """What the harness puts before the policy, and what the policy has to write, as one text."""
    blocks = ["think", "tool_call", "answer", "information"]
    extra = {
        "self_memory": ["mem"],
        "summary": ["mem", SUMMARISE],
        "external": ["query", "retrieved", "store", *STORE_KINDS],
    }.get(agent.kind, [])
    names = [*blocks, *extra, *(GRAINS if agent.grains == 2 else ())]
    plain = {SUMMARISE, *STORE_KINDS}
    words = [name if name in plain else f"<{name}> </{name}>" for name in names]
    return " ".join([system_prompt(agent), *words])


def stop_strings(agent: Agent) -> tuple[str, ...]:
    """What ends a step: its action or, with an external memory, a query."""
    return (*STOP_STRINGS, "</query>") if agent.kind == "external" else STOP_STRINGS


@dataclass(frozen=True)
class ParsedStep:
    """What one step's text says.

    `memory_at` is the [start, end) of the memory's characters, `grains_at` that of each grain's:
    the memory itself, or its two parts; empty where the memory does not have the parts it needs.
    """

    memory: str | None
    memory_at: tuple[int, int] | None
    action: Action
    action_text: str
    well_formed: bool
    grains_at: tuple[tuple[int, int], ...] = ()


_BLOCK = {
    name: re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL)
    for name in ("mem", "think", "tool_call", "answer", *GRAINS)
}
TAG = re.compile(
    r"</?(?:mem|think|tool_call|answer|information|summary|facts|query|retrieved|store)>"
)
_STEP = {
    memory: re.compile(
        (r"\s*<mem>.*?</mem>" if memory else "")
        + r"\s*<think>.*?</think>\s*<(tool_call|answer)>.*?</\1>\s*",
        re.DOTALL,
    )
    for memory in (True, False)
}
_TWO_GRAINS = re.compile(r"\s*<summary>.*?</summary>\s*<facts>.*?</facts>\s*", re.DOTALL)


def parse_step(text: str, *, memory: bool = True, grains: int = 1) -> ParsedStep:
    """Read a step. `memory`: the agent has to write a <mem>, of one grain or of two.

    The action is the first complete <tool_call> or <answer> outside <mem> and <think>, so an
    answer that is only thought about does not count. A step is well formed if it consists of the
    blocks of the protocol, each once and in order, with nothing but white space around them and
    no tag inside them. What follows the action (the rest of a token that ended in the stop
    string) is not the step's text.
    """
    outside = text
    memory_text, memory_at = None, None
    # A memory that is only thought about is none; positions stay where thoughts are blanked.
    found = _BLOCK["mem"].search(_BLOCK["think"].sub(_blank, text))
    if found:
        memory_at = found.span(1)
        memory_text = text[slice(*memory_at)].strip()
    for name in ("mem", "think"):
        outside = _BLOCK[name].sub(_blank, outside)
    actions = [
        (m.start(), name, m)
        for name in ("tool_call", "answer")
        for m in [_BLOCK[name].search(outside)]
        if m
    ]
    grains_at = _grains(text, memory_at, grains)
    if not actions:
        return ParsedStep(memory_text, memory_at, "none", "", False, grains_at)
    _, action, match = min(actions)
    if memory_at and memory_at[0] > match.start():  # what follows the action is no step's text
        memory_text, memory_at, grains_at = None, None, ()
    action_text = match.group(1).strip()
    step = text[: match.end()]
    tags = 4 + (2 * memory) + (4 if memory and grains == 2 else 0)
    well_formed = (
        _STEP[memory].fullmatch(step) is not None
        and len(TAG.findall(step)) == tags
        and (not memory or (bool(memory_text) and len(grains_at) == grains))
        and bool(action_text)
    )
    kind: Action = "tool_call" if action == "tool_call" else "answer"
    return ParsedStep(memory_text, memory_at, kind, action_text, well_formed, grains_at)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())


def _grains(
    text: str, memory_at: tuple[int, int] | None, grains: int
) -> tuple[tuple[int, int], ...]:
    """[start, end) of the characters of each grain of the memory; empty where one is missing."""
    if memory_at is None:
        return ()
    if grains == 1:
        return (memory_at,)
    start, end = memory_at
    if _TWO_GRAINS.fullmatch(text[start:end]) is None:
        return ()
    spans = [_BLOCK[name].search(text, start, end) for name in GRAINS]
    return tuple(span.span(1) for span in spans if span)


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
    system = system_prompt(agent)
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


def memory_block_ids(
    codec: Codec, output_ids: Sequence[int], *, grain: int | None = None
) -> list[int]:
    """A sampled memory in its tags: <mem> ... </mem>, ready to follow a head.

    grain: of a memory of two grains only this one, in its own tags too; by default the whole.
    The memory's own tokens stay as sampled. Only a token that reaches over a tag (">The", "</")
    is replaced by the encoding of its part inside the memory.
    """
    text, offsets = codec.text_and_offsets(output_ids)
    parsed = parse_step(text, grains=1 if grain is None else 2)
    at = parsed.memory_at
    if at is None or (grain is not None and not parsed.grains_at):
        raise ValueError("memory_block_ids: the step has no <mem> ... </mem> of that kind")
    start, end = at
    if grain is not None:
        name = GRAINS[grain]
        inside = parsed.grains_at[grain]
        start, end = inside[0] - len(f"<{name}>"), inside[1] + len(f"</{name}>")
    first, last = token_span(offsets, start, end)
    left = right = ""
    if first < last and offsets[first][0] < start:
        left, first = text[start : min(offsets[first][1], end)], first + 1
    if first < last and offsets[last - 1][1] > end:
        right, last = text[max(offsets[last - 1][0], start) : end], last - 1
    inner = list(output_ids[first:last])
    if not inner:
        return codec.encode(f"<mem>{left}{right}</mem>")
    return [*codec.encode("<mem>" + left), *inner, *codec.encode(right + "</mem>")]
