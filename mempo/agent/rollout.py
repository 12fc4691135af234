"""The agent loop: many trajectories at once over one sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mempo.agent import external
from mempo.agent.context import context_ids, reply_ids, without_memories
from mempo.agent.protocol import ParsedStep, head_ids, parse_step, token_span
from mempo.agent.reward import own_reward, score_answer, trajectory_reward
from mempo.config import Agent, Reward, Rollout, writes_memory
from mempo.draws import Key
from mempo.environments.world import ToolError, World
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, Question, Request, Status, Step, Trajectory


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out; one completion a request, in order."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]: ...


@dataclass
class _Run:
    """A trajectory on its way."""

    question: Question
    rollout: int
    head: list[int]
    limit: int
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None

    def used(self) -> int:
        return sum(len(s.output_ids) for s in self.steps)

    def queries(self) -> int:
        return sum(s.action == "query" for s in self.steps)


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
    """
    runs = [
        _Run(q, g, head_ids(codec, agent, q), agent.max_steps or world.max_steps(q))
        for q in questions
        for g in range(group_size)
    ]
    served = 0
    while active := [r for r in runs if r.status is None]:
        if progress:
            progress(len(runs) - len(active), len(runs))
        ready: list[tuple[_Run, Request]] = []
        for r in active:
            request = _request(r, codec, agent, rollout, key, sampling.memory_weight != 1)
            if request is not None:
                ready.append((r, request))
        completions = sampler.generate([request for _, request in ready], sampling)
        for (r, request), completion in zip(ready, completions, strict=True):
            r.steps.append(_read_step(codec, agent, r, request, completion, version))
            _settle(r)
        going_on = [r for r, _ in ready if r.status is None]
        _ask_store(codec, agent, [r for r in going_on if r.steps[-1].action == "query"])
        calling = [r for r in going_on if r.steps[-1].action == "tool_call"]
        served += _call_tools(world, codec, calling, served)
    return [_finished(r, reward) for r in runs]


def _request(
    r: _Run, codec: Codec, agent: Agent, rollout: Rollout, key: tuple[Key, ...], weighted: bool
) -> Request | None:
    """The next step's request, or None where a limit ends the trajectory (its status is set).

    weighted: the memory has a weight of its own, so the prompt is also needed without it.
    """
    queries = r.queries()  # they are no steps of the environment, and have a limit of their own
    if len(r.steps) - queries >= r.limit or queries > agent.max_queries:
        r.status = "step_limit"
        return None
    budget = rollout.max_step_tokens
    if rollout.max_trajectory_tokens:
        budget = min(budget, rollout.max_trajectory_tokens - r.used())
        if budget <= 0:
            r.status = "truncated"
            return None
    prompt = context_ids(agent, codec, r.question, r.head, r.steps)
    if len(prompt) > rollout.max_prompt_tokens:
        r.status = "context_overflow"
        return None
    without = None
    if weighted:
        without = context_ids(agent, codec, r.question, r.head, without_memories(r.steps))
    return Request(prompt, budget, (*key, r.question.id, r.rollout, len(r.steps)), without)


def _read_step(
    codec: Codec, agent: Agent, r: _Run, request: Request, completion: Completion, version: int
) -> Step:
    ids = completion.ids
    end = ids[:-1] if completion.finish_reason == "eos" else ids  # the end token is no text
    text, offsets = codec.text_and_offsets(end)
    parsed = _parse(codec, agent, r.steps, text)
    spans = [token_span(offsets, *at) for at in parsed.grains_at]
    return Step(
        prompt_ids=request.prompt_ids,
        head_tokens=len(r.head),
        output_ids=ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        mem_spans=spans
        if writes_memory(agent, len(r.steps)) and all(a < b for a, b in spans)
        else [],
        memory=parsed.memory,
        action=parsed.action,
        action_text=parsed.action_text,
        well_formed=parsed.well_formed,
        policy_version=version,
    )


def _parse(codec: Codec, agent: Agent, steps: Sequence[Step], text: str) -> ParsedStep:
    if agent.kind == "external":
        return external.parse_piece(external.written(codec, steps), text)
    return parse_step(text, memory=writes_memory(agent, len(steps)), grains=agent.grains)


def _settle(r: _Run) -> None:
    """End the trajectory where its last step ends it."""
    last = r.steps[-1]
    match last.action:
        case "answer":
            r.status = "answered"
        case "none":
            r.status = "truncated" if last.finish_reason == "length" else "bad_format"


def _ask_store(codec: Codec, agent: Agent, runs: list[_Run]) -> None:
    """Serve the queries to the agent's own store."""
    for r in runs:
        last = r.steps[-1]
        last.observation = external.answer_query(agent, r.steps)
        last.observation_ids = reply_ids(codec, last.action, last.observation)


def _call_tools(world: World, codec: Codec, runs: list[_Run], served: int) -> int:
    """Serve the calls of a step; the number that succeeded. `served`: how many did before."""
    if not runs:
        return 0
    replies = world.reply([r.question for r in runs], [r.steps[-1].action_text for r in runs])
    errors = [reply for reply in replies if isinstance(reply, ToolError)]
    if len(errors) == len(replies) and not served:
        raise ConnectionError(f"all {len(errors)} tool calls failed; the first: {errors[0]}")
    for r, reply in zip(runs, replies, strict=True):
        if isinstance(reply, ToolError):
            r.status = "tool_error"
        else:
            r.steps[-1].observation = reply
            r.steps[-1].observation_ids = reply_ids(codec, "tool_call", reply)
    return len(replies) - len(errors)


def _finished(r: _Run, settings: Reward) -> Trajectory:
    assert r.status is not None
    answer = r.steps[-1].action_text if r.status == "answered" else ""
    em, f1 = score_answer(answer, r.question.answers)
    well_formed = bool(r.steps) and r.status == "answered" and all(s.well_formed for s in r.steps)
    trajectory = Trajectory(
        question=r.question,
        rollout=r.rollout,
        steps=r.steps,
        status=r.status,
        answer=answer,
        f1=f1,
        em=em,
        format=float(well_formed),
    )
    if settings.function:
        trajectory.reward = own_reward(trajectory, settings.function)
    else:
        trajectory.reward = trajectory_reward(
            all_well_formed=well_formed, answer=answer, em=em, f1=f1, settings=settings
        )
    return trajectory
