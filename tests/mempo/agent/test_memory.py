from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.memory import has_memory, prompt_ids
from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Step

HEAD = [901, 902]


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
    assert prompt_ids(Agent(history=str(k)), codec, HEAD, steps) == expected


@pytest.mark.parametrize(
    "agent",
    [Agent(history="all"), Agent(kind="react"), Agent(kind="react", history="memory")],
    ids=["all", "react", "react ignores history"],
)
def test_the_whole_history_is_every_step_in_order(
    codec: Codec, make_step: Callable[..., Step], agent: Agent
) -> None:
    steps = numbered(make_step, 4)
    assert prompt_ids(agent, codec, HEAD, []) == HEAD
    expected = [*HEAD, 11, 12, 19, 21, 22, 29, 31, 32, 39]
    assert prompt_ids(agent, codec, HEAD, steps) == expected


def test_history_memory_keeps_the_last_memory_and_the_latest_reply(
    codec: Codec, write_step: Callable[..., Step]
) -> None:
    agent = Agent(history="memory")
    steps = [
        write_step(codec, "<mem>old</mem><think>t</think><tool_call>q</tool_call>", "first"),
        write_step(codec, "<mem>new fact</mem><think>t</think><tool_call>q</tool_call>", "second"),
    ]
    assert prompt_ids(agent, codec, HEAD, []) == HEAD
    prompt = prompt_ids(agent, codec, HEAD, steps)
    assert prompt[:2] == HEAD
    assert codec.text(prompt[2:]) == "<mem>new fact</mem>\n<information>second</information>\n"


def test_history_memory_without_a_memory_is_the_reply_alone(
    codec: Codec, write_step: Callable[..., Step]
) -> None:
    step = write_step(codec, "<think>t</think><tool_call>q</tool_call>", "reply")
    prompt = prompt_ids(Agent(history="memory"), codec, HEAD, [step])
    assert prompt == [*HEAD, *step.observation_ids]


@given(count=st.integers(1, 5))
def test_prompts_do_not_share_lists_with_the_steps(
    codec: Codec, make_step: Callable[..., Step], count: int
) -> None:
    steps = numbered(make_step, count)
    prompt_ids(Agent(), codec, HEAD, steps).append(0)
    assert HEAD == [901, 902]
    assert steps == numbered(make_step, count)


def test_only_the_self_memory_agent_has_a_memory() -> None:
    assert has_memory(Agent(kind="self_memory"))
    assert not has_memory(Agent(kind="react"))
