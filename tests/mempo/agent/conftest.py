"""A sampler that says what it is told, a world whose tool can fail, and the loop over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mempo.agent.rollout import run_trajectories
from mempo.config import Agent, Reward, Rollout
from mempo.environments.world import Split, ToolError
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, FinishReason, Question, Request, Trajectory

CALL = "<mem>m</mem><think>t</think><tool_call>river</tool_call>"


@dataclass
class ScriptedSampler:
    """Says `says[question id, rollout, step]`, a text or ids; else it calls the tool.

    Too long a text is cut like an engine cuts it. With a `fallback`, that sampler speaks where
    the script is silent.
    """

    codec: Codec
    says: dict[tuple[str, int, int], str | list[int]] = field(default_factory=dict)
    reason: FinishReason = "stop"
    fallback: Any = None
    requests: list[Request] = field(default_factory=list)
    waiting: list[tuple[int, Request, Sampling]] = field(default_factory=list)

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        self.waiting.append((number, request, sampling))

    def drop(self, numbers: Sequence[int]) -> None:
        self.dropped = list(numbers)

    def poll(self) -> list[tuple[int, Completion]]:
        now, self.waiting = self.waiting, []
        return [(number, self._complete(r, sampling)) for number, r, sampling in now]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return [self._complete(r, sampling) for r in requests]

    def _complete(self, request: Request, sampling: Sampling) -> Completion:
        self.requests.append(request)
        question, rollout, step = request.key[-3:]
        key = (str(question), int(rollout), int(step))
        if self.fallback and key not in self.says:
            return self.fallback.generate([request], sampling)[0]
        said = self.says.get(key, CALL)
        ids = self.codec.encode(said) if isinstance(said, str) else said
        cut = ids[: request.max_tokens]
        reason = "length" if len(cut) < len(ids) else self.reason
        return Completion(cut, [-0.5] * len(cut), reason)


@dataclass
class Replies:
    """A world whose tool always says `text`, or fails at the calls, counted, that `fails` names."""

    fails: Callable[[int], bool] = lambda _: False
    text: str = "The Seine."
    steps: int = 5
    calls: int = 0
    waits: bool = False

    def questions(
        self, split: Split, count: int, *, objectives: int, key: tuple[str | int, ...]
    ) -> list[Question]:
        raise AssertionError("the loop is given its questions")

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str | ToolError]:
        replies: list[str | ToolError] = []
        for _ in queries:
            replies.append(ToolError("503") if self.fails(self.calls) else self.text)
            self.calls += 1
        return replies

    def max_steps(self, question: Question) -> int:
        return self.steps


def _run(sampler: Any, questions: Sequence[Question], **settings: Any) -> list[Trajectory]:
    defaults: dict[str, Any] = {
        "agent": Agent(),
        "rollout": Rollout(),
        "reward": Reward(),
        "group_size": 1,
        "sampling": Sampling(),
        "key": (7, "rollout", 0),
        "version": 3,
    }
    world = settings.pop("world", None) or Replies()
    return run_trajectories(world, sampler, sampler.codec, questions, **(defaults | settings))


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedSampler]:
    return ScriptedSampler


@pytest.fixture(scope="session")
def replies() -> type[Replies]:
    return Replies


@pytest.fixture(scope="session")
def run() -> Callable[..., list[Trajectory]]:
    """run(sampler, questions, world=Replies(), **arguments of run_trajectories)"""
    return _run
