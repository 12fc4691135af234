"""The agent loop: many trajectories at once over one sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from mempo.agent.protocol import head_ids
from mempo.agent.trajectory import Live, Rules
from mempo.config import Agent, Reward, Rollout
from mempo.draws import Key
from mempo.environments.world import ToolError, World
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, Question, Request, Trajectory

TOOL_THREADS = 16  # calls of tools under way at once, beside the sampler


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out; it takes further requests while it decodes."""

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        """Begin with a request; `number` tells its completion from the others'."""
        ...

    def poll(self) -> list[tuple[int, Completion]]:
        """Decode for a moment; what is finished since the last call, by number."""
        ...

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget the requests on their way, whose numbers these are, and what was kept for them."""
        ...


def run_trajectories(
    world: World,
    sampler: Sampler,
    codec: Codec,
    questions: Sequence[Question],
    *,
    agent: Agent,
    rollout: Rollout,
    reward: Reward,
    group_size: int,
    sampling: Sampling,
    key: tuple[Key, ...],
    version: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """`group_size` rollouts of each question, in the order question by question.

    Every draw is a function of (key, question id, rollout, step). A rollout whose prompt outgrows
    the limit, whose tool fails or whose output has no action ends with a status of its own; the
    others go on. If no tool call at all has succeeded, the tool is down: ConnectionError. A failure
    of `reward.function` or `agent.function` is a fault of the code and stops all: ValueError.

    Each goes on at its own pace: its next step begins when the one before it is over, whatever the
    others do. Calls of a tool that waits are made beside the sampler. Then steps decode together as
    replies happen to come, and with them the last bits of log-probs; else all is a function of the
    arguments.
    """
    rules = Rules(codec, agent, rollout, key, version, sampling.memory_weight != 1)
    lives = [
        Live(rules, q, g, head_ids(codec, agent, q), agent.max_steps or world.max_steps(q))
        for q in questions
        for g in range(group_size)
    ]
    decoding: dict[int, Request] = {}
    try:
        _run(world, sampler, lives, sampling, progress or (lambda done, of: None), decoding)
    finally:  # what comes next, a second try or what a resume leaves out, must not depend on this
        sampler.drop(list(decoding))
    return [live.finished(reward) for live in lives]


def _run(
    world: World,
    sampler: Sampler,
    lives: Sequence[Live],
    sampling: Sampling,
    report: Callable[[int, int], None],
    decoding: dict[int, Request],
) -> None:
    """All trajectories to their end. `decoding` holds what the sampler is at work on, by number."""
    calls: dict[Future[list[str | ToolError]], Live] = {}
    number = {id(live): n for n, live in enumerate(lives)}
    replies: list[str | ToolError] = []

    def begin(live: Live) -> None:
        if (request := live.request()) is not None:
            decoding[number[id(live)]] = request
            sampler.submit(number[id(live)], request, sampling)

    def receive(live: Live, reply: str | ToolError) -> None:
        replies.append(reply)
        live.receive(reply)
        if live.status is None:
            begin(live)

    with ThreadPoolExecutor(TOOL_THREADS) as pool:
        for live in lives:
            begin(live)
        while decoding or calls:
            calling: list[Live] = []
            for n, completion in sampler.poll() if decoding else ():
                live = lives[n]
                live.take(decoding.pop(n), completion)
                if live.calling:
                    calling.append(live)
                elif live.status is None:
                    begin(live)
            if world.waits:
                calls |= {pool.submit(_reply, world, [live]): live for live in calling}
            elif calling:
                for live, reply in zip(calling, _reply(world, calling), strict=True):
                    receive(live, reply)
            report(len(lives) - len(decoding) - len(calls), len(lives))
            over = wait(calls, timeout=0 if decoding else None, return_when=FIRST_COMPLETED).done
            for call in over:
                (reply,) = call.result()
                receive(calls.pop(call), reply)
    _check_tool(replies)


def _reply(world: World, calling: Sequence[Live]) -> list[str | ToolError]:
    return list(
        world.reply(
            [live.question for live in calling], [live.steps[-1].action_text for live in calling]
        )
    )


def _check_tool(replies: Sequence[str | ToolError]) -> None:
    """ConnectionError where there were calls and none of them has succeeded."""
    errors = [reply for reply in replies if isinstance(reply, ToolError)]
    if errors and len(errors) == len(replies):
        raise ConnectionError(f"all {len(errors)} tool calls failed; the first: {errors[0]}")
