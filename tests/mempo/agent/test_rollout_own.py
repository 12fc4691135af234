"""A reward and a view of one's own in the agent loop."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from mempo.agent.context import context_ids
from mempo.agent.protocol import head_ids
from mempo.config import Agent, Reward
from mempo.environments.own_tool import OwnTool
from mempo.policies.codec import Codec
from mempo.types import Question, Trajectory

Run = Callable[..., list[Trajectory]]
ANSWER = "<mem>m</mem><think>t</think><answer>Paris</answer>"
MODULE = """
def by_status(trajectory):
    if trajectory.status == "step_limit":
        return float("nan")
    return 10 * trajectory.em + len(trajectory.steps) + trajectory.reward

def breaks(trajectory):
    return trajectory.rollout // (1 - trajectory.rollout)

def forgets(trajectory):
    pass

def words(agent, codec, question, head, steps):
    return [*head, *codec.encode(f"{agent.kind} {question.id} {len(steps)}")]

def headless(agent, codec, question, head, steps):
    return list(head)[1:] if steps else list(head)

def text(agent, codec, question, head, steps):
    return codec.text(head)

def tool(question, query):
    return {"ok": "ok!"}[query]

def fails(agent, codec, question, head, steps):
    return steps[0]
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "own_functions_of_the_loop.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_functions_of_the_loop"


@pytest.fixture
def question(make_question: Callable[..., Question]) -> Question:
    return make_question()


def test_fault_17_a_reward_of_one_s_own_replaces_ours_and_may_reject_a_rollout(
    scripted: Any, run: Run, codec: Codec, question: Question, module: str
) -> None:
    settings = Reward(function=f"{module}:by_status", format_bonus=0.5)
    sampler = scripted(codec, {("q", 0, 1): ANSWER})
    answered, lost = run(sampler, [question], group_size=2, reward=settings)
    # Right in two steps, and no reward of ours beside it.
    assert (answered.reward, answered.em, answered.format) == (12.0, 1.0, 1.0)
    assert lost.status == "step_limit" and isnan(lost.reward)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("breaks", "failed on question q, rollout 1 (ZeroDivisionError"),
        ("forgets", "returned None"),
    ],
)
def test_a_reward_that_fails_names_function_question_and_rollout(
    scripted: Any, run: Run, codec: Codec, question: Question, module: str, name: str, part: str
) -> None:
    reward = Reward(function=f"{module}:{name}")
    with pytest.raises(ValueError, match=rf"^reward\.function: {module}:{name} ") as caught:
        run(scripted(codec), [question], group_size=2, reward=reward)
    assert part in str(caught.value) and "question q, rollout" in str(caught.value)


def test_a_view_of_one_s_own_is_what_each_step_sees(
    scripted: Any, run: Run, codec: Codec, question: Question, module: str
) -> None:
    agent = Agent(function=f"{module}:words")
    [t] = run(scripted(codec, {("q", 0, 1): ANSWER}), [question], agent=agent)
    head = head_ids(codec, agent, question)
    seen = [codec.encode(f"self_memory q {n}") for n in (0, 1)]
    assert [s.prompt_ids for s in t.steps] == [[*head, *ids] for ids in seen]
    assert (t.status, t.steps[0].memory) == ("answered", "m")  # `kind` names the protocol


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("headless", "do not begin with the head on question q, step 1; return [*head, ...]"),
        ("text", "returned a str that is no list of token ids on question q, step 0"),
        ("fails", "failed on question q, step 0 (IndexError"),
    ],
)
def test_a_view_that_fails_names_function_question_and_step(
    scripted: Any, run: Run, codec: Codec, question: Question, module: str, name: str, part: str
) -> None:
    agent = Agent(function=f"{module}:{name}")
    with pytest.raises(ValueError, match=rf"^agent\.function: {module}:{name} ") as caught:
        run(scripted(codec), [question], agent=agent)
    assert part in str(caught.value)


def test_fault_35_a_tool_of_one_s_own_may_fail_once_but_not_always(
    scripted: Any, replies: Any, run: Run, codec: Codec, question: Question, module: str
) -> None:
    def says(query: str) -> str:
        return f"<mem>m</mem><think>t</think><tool_call>{query}</tool_call>"

    world = OwnTool(replies(steps=2), f"{module}:tool")
    script = {
        ("q", g, t): says("x" if (g, t) == (3, 1) else "ok") for g in range(8) for t in (0, 1)
    }
    trajectories = run(scripted(codec, script), [question], group_size=8, world=world)
    assert [t.status for t in trajectories].count("tool_error") == 1
    assert trajectories[3].status == "tool_error" and len(trajectories[3].steps) == 2
    assert {s.observation for t in trajectories for s in t.steps} == {"ok!", ""}
    down = {key: says("x") for key in script}
    with pytest.raises(ConnectionError, match=rf"all 8 tool calls failed.*{module}:tool failed"):
        run(scripted(codec, down), [question], group_size=8, world=world)


def test_ids_of_numpy_are_taken_as_ints(
    codec: Codec, question: Question, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_numpy_view.py").write_text(
        "import numpy as np\n"
        "def view(agent, codec, question, head, steps):\n"
        "    return list(np.array([*head, 9]))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ids = context_ids(Agent(function="own_numpy_view:view"), codec, question, [5, 6], [])
    assert ids == [5, 6, 9] and {type(i) for i in ids} == {int}
