from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.context import context_ids
from mempo.config import Agent, writes_memory
from mempo.policies.codec import Codec
from mempo.types import Question, Step

HEAD = [901, 902]
QUESTION = Question("q", "Which river?", 1, [["the Seine"]])


def numbered(make_step: Callable[..., Step], count: int) -> list[Step]:
    """Steps whose ids say where they come from: step n writes 10n+1, 10n+2; its reply is 10n+9."""
    return [
        make_step([10 * n + 1, 10 * n + 2], observation_ids=[10 * n + 9]) for n in range(1, count)
    ]


@given(count=st.integers(1, 7), k=st.integers(1, 9))
def test_history_k_keeps_the_last_k_steps_and_their_replies(
    codec: Codec, make_step: Callable[..., Step], count: int, k: int
) -> None:
    steps = numbered(make_step, count)
    expected = list(HEAD)
    for n in range(1, count):
        if n > count - 1 - k:
            expected += [10 * n + 1, 10 * n + 2, 10 * n + 9]
    assert context_ids(Agent(history=str(k)), codec, QUESTION, HEAD, steps) == expected


@pytest.mark.parametrize(
    "agent",
    [Agent(history="all"), Agent(kind="react"), Agent(kind="react", history="memory")],
    ids=["all", "react", "react ignores history"],
)
def test_the_whole_history_is_every_step_in_order(
    codec: Codec, make_step: Callable[..., Step], agent: Agent
) -> None:
    steps = numbered(make_step, 4)
    assert context_ids(agent, codec, QUESTION, HEAD, []) == HEAD
    expected = [*HEAD, 11, 12, 19, 21, 22, 29, 31, 32, 39]
    assert context_ids(agent, codec, QUESTION, HEAD, steps) == expected


def test_history_memory_keeps_the_last_memory_and_the_latest_reply(
    codec: Codec, write_step: Callable[..., Step]
) -> None:
    agent = Agent(history="memory")
    steps = [
        write_step(codec, "<mem>old</mem><think>t</think><tool_call>q</tool_call>", "first"),
        write_step(codec, "<mem>new fact</mem><think>t</think><tool_call>q</tool_call>", "second"),
    ]
    assert context_ids(agent, codec, QUESTION, HEAD, []) == HEAD
    prompt = context_ids(agent, codec, QUESTION, HEAD, steps)
    assert prompt[:2] == HEAD
    assert codec.text(prompt[2:]) == "<mem>new fact</mem>\n<information>second</information>\n"


def test_history_memory_without_a_memory_is_the_reply_alone(
    codec: Codec, write_step: Callable[..., Step]
) -> None:
    step = write_step(codec, "<think>t</think><tool_call>q</tool_call>", "reply")
    prompt = context_ids(Agent(history="memory"), codec, QUESTION, HEAD, [step])
    assert prompt == [*HEAD, *step.observation_ids]


@given(count=st.integers(1, 5))
def test_prompts_do_not_share_lists_with_the_steps(
    codec: Codec, make_step: Callable[..., Step], count: int
) -> None:
    steps = numbered(make_step, count)
    context_ids(Agent(), codec, QUESTION, HEAD, steps).append(0)
    assert HEAD == [901, 902]
    assert steps == numbered(make_step, count)


def test_truncation_loses_what_is_older(codec: Codec, make_step: Callable[..., Step]) -> None:
    steps = numbered(make_step, 4)
    agent = Agent(kind="truncation", window=2)
    assert context_ids(agent, codec, QUESTION, HEAD, steps) == [*HEAD, 21, 22, 29, 31, 32, 39]


@pytest.mark.parametrize(
    ("done", "seen"),
    # Steps 2 and 4 (from 0) write a summary; each stays in view until the next one is there.
    [(0, []), (1, [1]), (2, [1, 2]), (3, [3]), (4, [3, 4]), (5, [5])],
)
def test_a_summary_agent_sees_all_since_its_last_summary(
    codec: Codec, make_step: Callable[..., Step], done: int, seen: list[int]
) -> None:
    agent = Agent(kind="summary", summary_every=2)
    steps = numbered(make_step, done + 1)
    expected = [*HEAD, *(i for n in seen for i in (10 * n + 1, 10 * n + 2, 10 * n + 9))]
    if done in (2, 4):
        expected += codec.encode("summarise\n")
    assert context_ids(agent, codec, QUESTION, HEAD, steps) == expected
    assert writes_memory(agent, done) == (done in (2, 4))


def test_retrieval_puts_the_most_similar_older_step_back(
    codec: Codec, write_step: Callable[..., Step]
) -> None:
    call = "<think>{}</think><tool_call>{}</tool_call>"
    steps = [
        write_step(codec, call.format("a", "rivers of France"), "The Seine flows through Paris."),
        write_step(codec, call.format("b", "tennis"), "A game with rackets."),
        write_step(codec, call.format("c", "cheese"), "Brie is soft."),
    ]
    agent = Agent(kind="retrieval", retrieved=1)
    context = codec.text(context_ids(agent, codec, QUESTION, [], steps))  # asks for a river
    first, _, last = (codec.text([*s.output_ids, *s.observation_ids]) for s in steps)
    assert context == first + last
    two = agent.model_copy(update={"retrieved": 2})
    ids = context_ids(two, codec, QUESTION, [], steps)
    assert ids == [i for s in steps for i in (*s.output_ids, *s.observation_ids)]


def test_two_grains_need_a_memory() -> None:
    with pytest.raises(ValueError, match=r"agent\.grains = 2 .* self_memory or summary"):
        Agent(kind="react", grains=2)
    assert Agent(kind="summary", grains=2).remembers
