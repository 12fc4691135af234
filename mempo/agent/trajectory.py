"""One trajectory on its way: what its next step sees, and how an output moves it on."""

from __future__ import annotations

from dataclasses import dataclass, field

from mempo.agent import external
from mempo.agent.context import context_ids, reply_ids, without_memories
from mempo.agent.protocol import ParsedStep, parse_step, token_span
from mempo.agent.reward import own_reward, score_answer, trajectory_reward
from mempo.config import Agent, Reward, Rollout, writes_memory
from mempo.draws import Key
from mempo.environments.world import ToolError
from mempo.policies.codec import Codec
from mempo.types import Completion, Question, Request, Status, Step, Trajectory


@dataclass(frozen=True)
class Rules:
    """What all trajectories of a rollout have in common."""

    codec: Codec
    agent: Agent
    limits: Rollout
    key: tuple[Key, ...]  # with question, rollout and step it decides every draw
    version: int  # of the policy's weights
    weighted: bool  # the memory has a weight of its own: prompts are needed without it, too


@dataclass
class Live:
    """A trajectory that goes on while its status is None."""

    rules: Rules
    question: Question
    rollout: int
    head: list[int]
    max_steps: int
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None

    @property
    def calling(self) -> bool:
        """Whether it waits for the reply to a tool call."""
        return self.status is None and bool(self.steps) and self.steps[-1].action == "tool_call"

    def request(self) -> Request | None:
        """The next step's request, or None where a limit ends the trajectory."""
        agent, limits, codec = self.rules.agent, self.rules.limits, self.rules.codec
        # Queries are no steps of the environment, and have a limit of their own.
        queries = sum(s.action == "query" for s in self.steps)
        if len(self.steps) - queries >= self.max_steps or queries > agent.max_queries:
            self.status = "step_limit"
            return None
        budget = limits.max_step_tokens
        if limits.max_trajectory_tokens:
            used = sum(len(s.output_ids) for s in self.steps)
            budget = min(budget, limits.max_trajectory_tokens - used)
            if budget <= 0:
                self.status = "truncated"
                return None
        prompt = context_ids(agent, codec, self.question, self.head, self.steps)
        if len(prompt) > limits.max_prompt_tokens:
            self.status = "context_overflow"
            return None
        without = None
        if self.rules.weighted:
            bare = without_memories(self.steps)
            without = context_ids(agent, codec, self.question, self.head, bare)
        key = (*self.rules.key, self.question.id, self.rollout, len(self.steps))
        return Request(prompt, budget, key, without)

    def take(self, request: Request, completion: Completion) -> None:
        """Read the policy's output as the next step; a query to its own store is served."""
        rules, ids = self.rules, completion.ids
        codec, agent = rules.codec, rules.agent
        end = ids[:-1] if completion.finish_reason == "eos" else ids  # the end token is no text
        text, offsets = codec.text_and_offsets(end)
        parsed = self._parse(text)
        spans = [token_span(offsets, *at) for at in parsed.grains_at]
        remembers = writes_memory(agent, len(self.steps)) and all(a < b for a, b in spans)
        step = Step(
            prompt_ids=request.prompt_ids,
            head_tokens=len(self.head),
            output_ids=ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            mem_spans=spans if remembers else [],
            memory=parsed.memory,
            action=parsed.action,
            action_text=parsed.action_text,
            well_formed=parsed.well_formed,
            policy_version=rules.version,
            cached_tokens=completion.cached_tokens,
        )
        self.steps.append(step)
        match step.action:
            case "answer":
                self.status = "answered"
            case "none":
                self.status = "truncated" if step.finish_reason == "length" else "bad_format"
            case "query":
                step.observation = external.answer_query(agent, self.steps)
                step.observation_ids = reply_ids(codec, step.action, step.observation)

    def receive(self, reply: str | ToolError) -> None:
        """The tool's reply to the call of the last step."""
        if isinstance(reply, ToolError):
            self.status = "tool_error"
        else:
            self.steps[-1].observation = reply
            self.steps[-1].observation_ids = reply_ids(self.rules.codec, "tool_call", reply)

    def finished(self, settings: Reward) -> Trajectory:
        """The trajectory with its answer and what it earned."""
        assert self.status is not None
        answer = self.steps[-1].action_text if self.status == "answered" else ""
        em, f1 = score_answer(answer, self.question.answers)
        well_formed = (
            bool(self.steps)
            and self.status == "answered"
            and all(step.well_formed for step in self.steps)
        )
        trajectory = Trajectory(
            question=self.question,
            rollout=self.rollout,
            steps=self.steps,
            status=self.status,
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

    def _parse(self, text: str) -> ParsedStep:
        agent, number = self.rules.agent, len(self.steps)
        if agent.kind == "external":
            return external.parse_piece(external.written(self.rules.codec, self.steps), text)
        return parse_step(text, memory=writes_memory(agent, number), grains=agent.grains)
