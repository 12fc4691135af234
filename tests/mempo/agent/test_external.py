"""The external-memory agent: turns of several pieces, its store, and how pieces are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mempo.agent.external import parse_piece, stored, turns
from mempo.agent.protocol import head_ids
from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Question, Trajectory

AGENT = Agent(kind="external", fold_every=1)
CALL = "<think>look</think><tool_call>river</tool_call>"
ASK = "<think>I need the <query>segments river</query>"
MORE = " again <query>summaries river</query>"
ANSWER = "</think><answer>Paris</answer>"

Run = Callable[..., list[Trajectory]]


def test_a_turn_of_three_pieces(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    question = make_question()
    says: Any = {
        ("q", 0, 0): CALL, ("q", 0, 1): CALL,
        ("q", 0, 2): ASK, ("q", 0, 3): MORE, ("q", 0, 4): ANSWER,
    }  # fmt: skip
    [t] = run(scripted(codec, says), [question], agent=AGENT)
    assert [s.action for s in t.steps] == ["tool_call", "tool_call", "query", "query", "answer"]
    assert [s.well_formed for s in t.steps] == [True] * 5
    assert (t.status, t.answer, t.reward) == ("answered", "Paris", 1.0)
    assert [s.observation for s in t.steps] == ["The Seine."] * 4 + [""]
    head = head_ids(codec, AGENT, question)

    def lived(*steps: Any) -> list[int]:
        return [i for s in steps for i in (*s.output_ids, *s.observation_ids)]

    # The first reply left the context when the second came; pieces of a turn follow each other.
    outline = codec.encode("<store>segments river ; summaries river</store>\n")
    assert t.steps[1].prompt_ids == [*head, *lived(t.steps[0])]
    assert t.steps[2].prompt_ids == [*head, *outline, *lived(t.steps[1])]
    assert t.steps[4].prompt_ids == [*head, *outline, *lived(*t.steps[1:4])]
    assert codec.text(t.steps[2].observation_ids) == "<retrieved>The Seine.</retrieved>"
    finished, going_on = turns(t.steps)
    assert ([len(turn) for turn in finished], going_on) == ([1, 1, 3], [])


def test_queries_have_a_limit_of_their_own(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    says: Any = {("q", 0, n): ASK if n == 0 else MORE for n in range(9)}
    agent = AGENT.model_copy(update={"max_queries": 3})
    [t] = run(scripted(codec, says), [make_question()], agent=agent)
    assert (t.status, len(t.steps)) == ("step_limit", 4)
    # Queries are no steps of the environment: three and five calls fit into its five.
    says = {("q", 0, n): ASK if n == 0 else MORE for n in range(3)} | {
        ("q", 0, 3): "</think><tool_call>river</tool_call>",
        **{("q", 0, n): CALL for n in range(4, 20)},
    }
    [t] = run(scripted(codec, says), [make_question()], agent=agent)
    assert [s.action for s in t.steps] == ["query"] * 3 + ["tool_call"] * 5


def test_a_store_is_empty_until_something_left_the_context(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    says: Any = {("q", 0, 0): CALL, ("q", 0, 1): ASK, ("q", 0, 2): ANSWER}
    [t] = run(scripted(codec, says), [make_question()], agent=AGENT)
    assert stored(AGENT, t.steps[:1]) == []
    assert t.steps[1].observation == "nothing"
    assert b"<store>" not in codec.text(t.steps[1].prompt_ids).encode().split(b"<think>")[1]


@pytest.mark.parametrize(
    ("written", "text", "action", "well_formed"),
    [
        ("", ASK, "query", True),
        ("<think>I need the ", MORE, "query", True),
        ("<think>I need the  again ", ANSWER, "answer", True),
        ("<think>a</think><answer>The <", "x", "none", False),
        ("", "<think>a</think><answer>The <query>segments river</query>", "query", True),
        ("<think>a</think><answer>The ", "Seine</answer>", "answer", True),
        ("", "<think>a</think> <query>segments river</query>", "query", True),
        ("", "<query>segments river</query>", "query", True),  # its very first token
        ("", "I ask <query>segments river</query>", "query", False),  # no thought was opened
        ("", "<think>a <query>river</query>", "query", False),  # names no kind
        ("", "<think>a <query>segments </query>", "query", False),  # asks for nothing
        ("", "<think>a <think>b <query>segments river</query>", "query", False),
        ("", "<think>a</think><answer>b</answer><query>segments c</query>", "query", False),
        ("", "<think>a <query>segments river", "none", False),
        ("", CALL, "tool_call", True),
    ],
)
def test_a_piece_is_read_with_what_the_turn_has_written(
    written: str, text: str, action: str, well_formed: bool
) -> None:
    parsed = parse_piece(written, text)
    assert (parsed.action, parsed.well_formed) == (action, well_formed)
