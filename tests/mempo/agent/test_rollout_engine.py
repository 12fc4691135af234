"""The loop over an engine: each trajectory at its own pace, and the same trajectories."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.world import ToolError
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, Question, Request, Trajectory

Run = Callable[..., list[Trajectory]]
ANSWER = "<mem>m</mem><think>t</think><answer>Paris</answer>"


@dataclass
class OneAtATime:
    """An engine over a sampler: each poll finishes one request, picked by `pick`."""

    sampler: Any
    pick: Callable[[int], int] = lambda count: count - 1
    held: list[tuple[int, Request, Sampling]] = field(default_factory=list)

    @property
    def codec(self) -> Codec:
        return self.sampler.codec

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        self.held.append((number, request, sampling))

    def drop(self, numbers: Sequence[int]) -> None:
        self.dropped = list(numbers)

    def poll(self) -> list[tuple[int, Completion]]:
        number, request, sampling = self.held.pop(self.pick(len(self.held)))
        return [(number, self.sampler.generate([request], sampling)[0])]


class Slow:
    """A tool that answers about question 'slow' only after `released`, or after a while."""

    waits = True

    def __init__(self) -> None:
        self.released = threading.Event()
        self.in_time: list[bool] = []

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str]:
        if questions[0].id == "slow":
            self.in_time.append(self.released.wait(20))
        return ["The Seine."] * len(queries)

    def max_steps(self, question: Question) -> int:
        return 4


def test_a_slow_tool_call_holds_up_nobody_else(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    world = Slow()
    sampler = scripted(codec, {("quick", 0, 3): ANSWER, ("slow", 0, 1): ANSWER})
    whole = sampler.generate

    def generate(requests: list[Request], sampling: Sampling) -> list[Completion]:
        if requests[0].key[-3:] == ("quick", 0, 3):  # the last of four steps
            world.released.set()
        return whole(requests, sampling)

    sampler.generate = generate
    questions = [make_question(id="slow"), make_question(id="quick")]
    slow, quick = run(OneAtATime(sampler), questions, world=world)
    assert world.in_time == [True]  # the other one did all its steps meanwhile
    assert [len(t.steps) for t in (slow, quick)] == [2, 4]
    assert {t.status for t in (slow, quick)} == {"answered"}


@given(st.integers(0, 2**32), st.sets(st.integers(0, 11), max_size=8))
def test_the_order_of_completions_changes_no_trajectory(
    scripted: Any, replies: Any, run: Run, codec: Codec, make_question: Any, seed: int, short: Any
) -> None:
    says = {(q, g, step): ANSWER for step, (q, g) in enumerate([("a", 0), ("b", 1), ("c", 0)])}
    says |= {("a", 1, n % 4): "neither call nor answer" for n in short}
    questions = [make_question(id=name) for name in "abc"]

    def trajectories(engine: Any) -> list[Trajectory]:
        return run(engine, questions, world=replies(), group_size=2)

    expected = trajectories(scripted(codec, says))
    rng = random.Random(seed)  # not drawn from: replies come when their threads are done
    engine = OneAtATime(scripted(codec, says), rng.randrange)
    assert trajectories(engine) == expected


def test_fault_35_a_failing_tool_ends_its_own_rollout_and_one_that_never_works_the_run(
    scripted: Any, replies: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    questions = [make_question(id=name) for name in "abcd"]
    engine = OneAtATime(scripted(codec))
    lives = run(engine, questions, world=replies(fails=lambda call: call == 2))
    assert sorted(t.status for t in lives) == ["step_limit"] * 3 + ["tool_error"]
    with pytest.raises(ConnectionError, match="all 4 tool calls failed; the first: 503"):
        run(OneAtATime(scripted(codec)), questions, world=replies(fails=lambda _: True))


def test_what_a_tool_raises_ends_the_run(
    scripted: Any, replies: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    class Broken(type(replies())):
        def reply(self, questions: Any, queries: Any) -> list[str | ToolError]:
            raise ValueError("a fault of the code")

    with pytest.raises(ValueError, match="a fault of the code"):
        run(OneAtATime(scripted(codec)), [make_question()], world=Broken())
