"""The agent loop: many trajectories at once over one sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol, runtime_checkable

from mempo.agent.protocol import head_ids
from mempo.agent.trajectory import Live, Rules
from mempo.config import Agent, Reward, Rollout
from mempo.draws import Key
from mempo.environments.world import ToolError, World
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, Question, Request, Trajectory

TOOL_THREADS = 16  # calls of tools under way at once, beside an engine


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out; one completion a request, in order."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]: ...


@runtime_checkable
class Engine(Protocol):
    """A sampler that takes further requests while it decodes."""

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        """Begin with a request; `number` tells its completion from the others'."""
        ...

    def poll(self) -> list[tuple[int, Completion]]:
        """Decode for a moment; what is finished since the last call, by number."""
        ...


def run_trajectories(
    world: World,
    sampler: Sampler | Engine,
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

    An `Engine` gets each step as soon as the one before it is over, whatever the others do, and
    calls of tools are made beside it; a plain `Sampler` gets the steps of all rollouts together.
    """
    rules = Rules(codec, agent, rollout, key, version, sampling.memory_weight != 1)
    lives = [
        Live(rules, q, g, head_ids(codec, agent, q), agent.max_steps or world.max_steps(q))
        for q in questions
        for g in range(group_size)
    ]
    report = progress or (lambda done, of: None)
    if isinstance(sampler, Engine):
        _run_freely(world, sampler, lives, sampling, report)
    else:
        _run_together(world, sampler, lives, sampling, report)
    return [live.finished(reward) for live in lives]


def _run_together(
    world: World,
    sampler: Sampler,
    lives: Sequence[Live],
    sampling: Sampling,
    report: Callable[[int, int], None],
) -> None:
    """Step by step: all first steps, all calls of tools, all second steps, and so on."""
    served = 0
    while active := [live for live in lives if live.status is None]:
        report(len(lives) - len(active), len(lives))
        ready = [(live, request) for live in active if (request := live.request()) is not None]
        completions = sampler.generate([request for _, request in ready], sampling)
        for (live, request), completion in zip(ready, completions, strict=True):
            live.take(request, completion)
        calling = [live for live, _ in ready if live.calling]
        replies = _reply(world, calling) if calling else []
        for live, reply in zip(calling, replies, strict=True):
            live.receive(reply)
        served += _check_tool(replies, served)


def _run_freely(
    world: World,
    engine: Engine,
    lives: Sequence[Live],
    sampling: Sampling,
    report: Callable[[int, int], None],
) -> None:
    """Each at its own pace: a slow tool call, or a long step, holds up nobody else."""
    decoding: dict[int, Request] = {}
    calls: dict[Future[list[str | ToolError]], Live] = {}
    number = {id(live): n for n, live in enumerate(lives)}
    replies: list[str | ToolError] = []

    def begin(live: Live) -> None:
        if (request := live.request()) is not None:
            decoding[number[id(live)]] = request
            engine.submit(number[id(live)], request, sampling)

    with ThreadPoolExecutor(TOOL_THREADS) as pool:
        for live in lives:
            begin(live)
        while decoding or calls:
            for n, completion in engine.poll() if decoding else ():
                live = lives[n]
                live.take(decoding.pop(n), completion)
                if live.calling:
                    calls[pool.submit(_reply, world, [live])] = live
                elif live.status is None:
                    begin(live)
            over = wait(calls, timeout=0 if decoding else None, return_when=FIRST_COMPLETED).done
            for call in over:
                live = calls.pop(call)
                replies += call.result()
                live.receive(replies[-1])
                if live.status is None:
                    begin(live)
            report(len(lives) - len(decoding) - len(calls), len(lives))
    _check_tool(replies, 0)


def _reply(world: World, calling: Sequence[Live]) -> list[str | ToolError]:
    return list(
        world.reply(
            [live.question for live in calling], [live.steps[-1].action_text for live in calling]
        )
    )


def _check_tool(replies: Sequence[str | ToolError], served: int) -> int:
    """How many of the replies are no errors; ConnectionError where no call has ever succeeded.

    served: how many did before.
    """
    errors = [reply for reply in replies if isinstance(reply, ToolError)]
    if errors and len(errors) == len(replies) and not served:
        raise ConnectionError(f"all {len(errors)} tool calls failed; the first: {errors[0]}")
    return len(replies) - len(errors)
