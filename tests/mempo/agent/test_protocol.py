from __future__ import annotations

import copy
import re
from itertools import pairwise
from typing import Literal, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mempo.agent.protocol import (
    head_ids,
    information_ids,
    memory_block_ids,
    parse_step,
    system_prompt,
    token_span,
)
from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Question

Kind = Literal["self_memory", "react"]
NAMES = ("mem", "think", "tool_call", "answer", "information")
TAG = re.compile(rf"(</?(?:{'|'.join(NAMES)})>)")
WORDS = st.text(alphabet="abé€😀 ;\n<>/", max_size=12).filter(lambda t: not TAG.search(t))
SOUP = st.lists(
    st.one_of(
        st.sampled_from([f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]),
        st.sampled_from(["", " ", "a", "b\n", "<mem", "</", ">"]),
    ),
    max_size=20,
).map("".join)
STEP = st.builds(
    lambda mem, think, act, text, rest: (
        f"<mem>{mem}</mem><think>{think}</think><{act}>{text}</{act}>{rest}"
    ),
    *(st.sampled_from(["", " ", "a", "a < b", "<answer>", "</mem>"]) for _ in range(2)),
    st.sampled_from(["tool_call", "answer"]),
    *(st.sampled_from(["", "a", "<think>", " rest <mem>"]) for _ in range(2)),
)
QUESTION = Question("q", "Where? When?", 2, [["Paris"], ["1910"]])


def well_formed(text: str, *, memory: bool) -> bool:
    """The protocol read off the pieces between tags: white space, block, white space, ..."""
    pieces = TAG.split(text)
    for block in ("mem", "think") if memory else ("think",):
        if len(pieces) < 5 or pieces[0].strip() or [pieces[1], pieces[3]] != _tags(block):
            return False
        if block == "mem" and not pieces[2].strip():
            return False
        pieces = pieces[4:]
    return (
        len(pieces) >= 5
        and not pieces[0].strip()
        and [pieces[1], pieces[3]] in (_tags("tool_call"), _tags("answer"))
        and bool(pieces[2].strip())
    )


def _tags(name: str) -> list[str]:
    return [f"<{name}>", f"</{name}>"]


@settings(max_examples=300)
@given(text=st.one_of(SOUP, STEP), memory=st.booleans())
def test_any_text_is_read_and_well_formed_is_what_the_protocol_says(
    text: str, memory: bool
) -> None:
    step = parse_step(text, memory=memory)
    assert step.well_formed == well_formed(text, memory=memory)
    assert (step.memory is None) == (step.memory_at is None)
    if step.memory_at:
        start, end = step.memory_at
        assert text[start - 5 : start] == "<mem>" and text[end : end + 6] == "</mem>"
        assert text[start:end].strip() == step.memory
    if step.action == "none":
        assert step.action_text == ""
    else:
        assert f"<{step.action}>" in text and f"</{step.action}>" in text


@given(mem=WORDS, think=WORDS, text=WORDS, action=st.sampled_from(["tool_call", "answer"]))
def test_a_well_formed_step_gives_its_parts_back(
    mem: str, think: str, text: str, action: str
) -> None:
    assume(mem.strip() and text.strip())
    tail = f"<think>{think}</think>\n<{action}>{text}</{action}>"
    step = parse_step(f"<mem>{mem}</mem>{tail} and more")
    assert (step.memory, step.action, step.action_text) == (mem.strip(), action, text.strip())
    assert step.well_formed
    plain = parse_step(tail, memory=False)
    assert (plain.memory, plain.action, plain.action_text) == (None, action, text.strip())
    assert plain.well_formed


@pytest.mark.parametrize(
    "text",
    [
        "<think>t</think><answer>A</answer>",  # no memory
        "<mem> </mem><think>t</think><answer>A</answer>",  # an empty one
        "<mem>m</mem><answer>A</answer>",  # no thought
        "<think>t</think><mem>m</mem><answer>A</answer>",  # another order
        "<mem>m</mem><think>t</think><answer> </answer>",  # an empty answer
        "<mem>m</mem>so<think>t</think><answer>A</answer>",  # words between blocks
        "<mem>m</mem><think>t</think><think>t</think><answer>A</answer>",  # twice
        "<mem>m<information>i</information></mem><think>t</think><answer>A</answer>",
    ],
)
def test_a_step_off_the_protocol_is_not_well_formed_but_its_action_counts(text: str) -> None:
    step = parse_step(text)
    assert not step.well_formed
    assert step.action == "answer"


def test_fault_22_an_answer_that_is_only_thought_about_does_not_count() -> None:
    step = parse_step("<think><answer>A</answer></think><answer>B</answer>")
    assert (step.action, step.action_text) == ("answer", "B")
    step = parse_step("<answer>B</think>")
    assert (step.action, step.action_text, step.well_formed) == ("none", "", False)


def test_an_answer_inside_the_memory_does_not_count() -> None:
    step = parse_step("<mem><answer>A</answer></mem><think>t</think><tool_call>q</tool_call>")
    assert (step.action, step.action_text, step.well_formed) == ("tool_call", "q", False)


def test_the_first_complete_action_counts() -> None:
    step = parse_step("<tool_call>one</tool_call><answer>two</answer>")
    assert (step.action, step.action_text) == ("tool_call", "one")
    step = parse_step("<tool_call>one<answer>two</answer>")
    assert (step.action, step.action_text) == ("answer", "two")


def test_fault_09_a_stop_string_may_end_inside_a_token(codec: Codec) -> None:
    tokenizer = copy.deepcopy(codec.tokenizer)
    tokenizer.add_tokens([">\n\nNext"])
    wide = Codec(tokenizer)
    ids = [
        *codec.encode("<mem>m</mem><think>t</think><answer>Paris</answer"),
        tokenizer.convert_tokens_to_ids(">\n\nNext"),
    ]
    step = parse_step(wide.text(ids))
    assert (step.action_text, step.well_formed) == ("Paris", True)


@given(
    lengths=st.lists(st.integers(0, 4), max_size=10),
    start=st.integers(0, 30),
    length=st.integers(0, 12),
)
def test_a_span_holds_the_tokens_with_a_character_inside(
    lengths: list[int], start: int, length: int
) -> None:
    offsets, at = [], 0
    for n in lengths:
        offsets.append((at, at + n))
        at += n
    wanted = range(start, start + length)
    inside = [i for i, (a, b) in enumerate(offsets) if any(c in wanted for c in range(a, b))]
    expected = (min(inside), max(inside) + 1) if inside else (0, 0)
    assert token_span(offsets, start, start + length) == expected


def test_a_character_of_several_tokens_takes_all_of_them_in() -> None:
    assert token_span([(0, 1), (1, 2), (1, 2), (2, 3)], 1, 2) == (1, 3)


def test_a_token_over_both_tags_of_an_empty_memory_is_no_memory() -> None:
    assert token_span([(0, 4), (4, 7), (7, 11)], 5, 5) == (0, 0)  # <mem | ></ | mem>


def spelled(codec: Codec, text: str, cuts: list[int]) -> list[int]:
    """Ids of `text` when it is encoded in pieces."""
    bounds = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    return [i for a, b in pairwise(bounds) for i in codec.encode(text[a:b])]


@given(
    before=st.sampled_from(["", "\n", "€ "]),
    memory=WORDS,
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_a_memory_is_put_back_with_its_sampled_tokens(
    codec: Codec, before: str, memory: str, cuts: list[int]
) -> None:
    """Also where tokens reach over a tag; only those are encoded again."""
    tokenizer = copy.deepcopy(codec.tokenizer)
    tokenizer.add_tokens([">a", "b</", "></", " <mem>a", ">é"])
    wide = Codec(tokenizer)
    text = f"{before}<mem>{memory}</mem><think>t</think><answer>A</answer>"
    ids = spelled(wide, text, cuts)
    assert wide.text(ids) == text
    at = parse_step(text).memory_at
    assert at is not None
    _, offsets = wide.text_and_offsets(ids)
    block = memory_block_ids(wide, ids)
    assert wide.text(block) == f"<mem>{memory}</mem>"
    inner = [i for i, (a, b) in zip(ids, offsets, strict=True) if at[0] <= a and b <= at[1]]
    assert any(block[n : n + len(inner)] == inner for n in range(len(block)))


def test_an_unusual_spelling_of_a_memory_is_kept(codec: Codec) -> None:
    ids = spelled(codec, "<mem>The Phantom</mem>", [10])
    assert codec.text([ids[codec.text(ids).index("The") - 2]])  # the pieces are really there
    _, offsets = codec.text_and_offsets(ids)
    first, last = token_span(offsets, 5, 16)
    assert ids[first:last] != codec.encode("The Phantom")
    assert memory_block_ids(codec, ids) == [
        *codec.encode("<mem>"),
        *ids[first:last],
        *codec.encode("</mem>"),
    ]


def test_a_token_over_both_tags_leaves_only_the_memory(codec: Codec) -> None:
    tokenizer = copy.deepcopy(codec.tokenizer)
    tokenizer.add_tokens([">a</"])
    wide = Codec(tokenizer)
    ids = wide.encode("<mem>a</mem>")
    text, offsets = wide.text_and_offsets(ids)
    assert (text, offsets[2]) == ("<mem>a</mem>", (4, 8))
    assert wide.text(memory_block_ids(wide, ids)) == "<mem>a</mem>"


def test_a_step_without_a_memory_has_no_block(codec: Codec) -> None:
    with pytest.raises(ValueError, match="no <mem>"):
        memory_block_ids(codec, codec.encode("<answer>A</answer>"))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_fault_10_the_tool_is_described_once(codec: Codec, kind: Kind) -> None:
    text = codec.text(head_ids(codec, Agent(kind=kind), QUESTION))
    assert text.count("<tool_call>words</tool_call>") == 1
    assert text.count(QUESTION.text) == 1
    assert ("<mem>" in text) == (kind == "self_memory")


def test_a_head_is_the_chat_template_up_to_where_the_policy_writes(codec: Codec) -> None:
    system = system_prompt(Agent(kind="react"))
    assert codec.text(head_ids(codec, Agent(kind="react"), QUESTION)) == (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        "<|im_start|>user\nWhere? When?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_head_without_a_template_is_two_lines(codec: Codec, atlas_codec: Codec) -> None:
    tokenizer = copy.deepcopy(codec.tokenizer)
    tokenizer.chat_template = None
    agent = Agent(kind="self_memory", prompt="short")
    assert Codec(tokenizer).text(head_ids(Codec(tokenizer), agent, QUESTION)) == (
        "self_memory\nWhere? When?\n"
    )
    assert atlas_codec.text(head_ids(atlas_codec, agent, QUESTION)).startswith(" self_memory ")


def test_a_reply_is_put_between_information_tags(codec: Codec) -> None:
    ids = information_ids(codec, "The Seine.")
    assert codec.text(ids) == "\n<information>The Seine.</information>\n"


def test_a_memory_behind_the_action_is_none() -> None:
    step = parse_step("<think>a</think><answer>b</answer><mem>late</mem>")
    assert (step.memory, step.memory_at, step.action_text) == (None, None, "b")


TWO = "<mem><summary>looked up a</summary> <facts>a is b</facts></mem><think>t</think>"


def test_a_memory_of_two_grains_has_two_spans(codec: Codec) -> None:
    text = TWO + "<answer>b</answer>"
    parsed = parse_step(text, grains=2)
    assert parsed.well_formed
    assert [text[slice(*at)] for at in parsed.grains_at] == ["looked up a", "a is b"]
    assert parsed.memory == "<summary>looked up a</summary> <facts>a is b</facts>"
    assert not parse_step(text).well_formed  # a memory of one grain holds no tags


@pytest.mark.parametrize(
    "memory",
    [
        "a is b",
        "<summary>s</summary>",
        "<facts>f</facts><summary>s</summary>",
        "<summary>s</summary>between<facts>f</facts>",
        "<summary>s</summary><facts>f</facts><facts>g</facts>",
    ],
)
def test_a_grain_that_is_missing_or_misplaced_is_bad_form(memory: str) -> None:
    text = f"<mem>{memory}</mem><think>t</think><answer>b</answer>"
    assert not parse_step(text, grains=2).well_formed


def test_a_block_of_one_grain_keeps_its_tags_and_no_other_grain(codec: Codec) -> None:
    ids = codec.encode(TWO)
    assert codec.text(memory_block_ids(codec, ids)) == TWO.removesuffix("<think>t</think>")
    assert [codec.text(memory_block_ids(codec, ids, grain=g)) for g in (0, 1)] == [
        "<mem><summary>looked up a</summary></mem>",
        "<mem><facts>a is b</facts></mem>",
    ]
    with pytest.raises(ValueError, match="of that kind"):
        memory_block_ids(codec, codec.encode("<mem>m</mem>"), grain=0)


def test_every_agent_has_a_prompt_that_names_its_tags() -> None:
    for kind, tags in (
        ("self_memory", ["<mem>"]),
        ("react", ["<think>"]),
        ("truncation", ["<think>"]),
        ("summary", ["<mem>"]),
        ("retrieval", ["<think>"]),
        ("external", ["<query>", "<store>", "<retrieved>"]),
    ):
        agent = Agent.model_validate({"kind": kind})
        assert all(tag in system_prompt(agent) for tag in [*tags, "<tool_call>", "<answer>"])
        assert system_prompt(agent.model_copy(update={"prompt": "short"})) == kind
    assert "<facts>" in system_prompt(Agent(grains=2))
