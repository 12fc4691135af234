"""Scripted trajectories as training rows for the cold start (SFT)."""

from __future__ import annotations

import numpy as np

from mempo.agent import external
from mempo.agent.context import context_ids, reply_ids
from mempo.agent.protocol import ANSWER_OPEN, head_ids, parse_step, token_span
from mempo.config import Agent, AgentKind, Sft
from mempo.draws import Key, generator
from mempo.environments.atlas import AtlasWorld, memory_text
from mempo.environments.experts import Script, ScriptedStep
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step


def step_text(step: ScriptedStep) -> str:
    """The text a policy would have written for a scripted step, or for a piece of one."""
    memory = f"<mem>{step.memory}</mem>" if step.memory is not None else ""
    thought = step.think if step.opened else f"<think>{step.think}"
    closed = "" if step.action == "query" else "</think>"
    return f"{memory}{thought}{closed}<{step.action}>{step.text}</{step.action}>"


def script_rows(codec: Codec, agent: Agent, script: Script) -> list[Row]:
    """One row per step, prompts as the agent would have seen them; every output token a target.

    An agent that sees its whole history is one row: each step's prompt is the row so far. What an
    `agent.function` shows is not known, so its steps are rows of their own.
    """
    steps = script_steps(codec, agent, script)
    sees_all = agent.kind == "react" or (agent.kind == "self_memory" and agent.history == "all")
    if sees_all and not agent.function:
        ids = list(steps[0].prompt_ids)
        mask = [False] * len(ids)
        for step in steps:
            ids += [*step.output_ids, *step.observation_ids]
            mask += [True] * len(step.output_ids) + [False] * len(step.observation_ids)
        return [Row(ids, mask)]
    return [
        Row(
            [*step.prompt_ids, *step.output_ids],
            [False] * len(step.prompt_ids) + [True] * len(step.output_ids),
        )
        for step in steps
    ]


def script_steps(codec: Codec, agent: Agent, script: Script) -> list[Step]:
    """The script as the agent loop would have lived it; log-probs unknown, so none."""
    assert agent.kind == script.agent
    head = head_ids(codec, agent, script.question)
    steps: list[Step] = []
    for scripted in script.steps:
        prompt = context_ids(agent, codec, script.question, head, steps)
        steps.append(_as_step(codec, agent, scripted, prompt, len(head)))
        observation = scripted.observation
        if scripted.action == "query":
            observation = external.answer_query(agent, steps)
        if scripted.action != "answer":
            steps[-1].observation = observation
            steps[-1].observation_ids = reply_ids(codec, scripted.action, observation)
    return steps


def _as_step(
    codec: Codec, agent: Agent, scripted: ScriptedStep, prompt: list[int], head_tokens: int
) -> Step:
    output = codec.encode(step_text(scripted))
    text, offsets = codec.text_and_offsets(output)
    parsed = parse_step(text, memory=scripted.memory is not None, grains=agent.grains)
    writes = scripted.memory is not None
    return Step(
        prompt_ids=prompt,
        head_tokens=head_tokens,
        output_ids=output,
        logprobs=[],
        finish_reason="stop",
        mem_spans=[token_span(offsets, *at) for at in parsed.grains_at] if writes else [],
        memory=scripted.memory,
        action=scripted.action,
        action_text=scripted.text,
        well_formed=True,
    )


def calibration_row(codec: Codec, agent: Agent, question: Question, context: list[int]) -> Row:
    """`question + context -> gold answer`, the gold always, also where the context lacks it.

    This is what makes P(answer | memory) mean "how much of the answer the memory holds".
    """
    ids = [*head_ids(codec, agent, question), *context, *codec.encode(ANSWER_OPEN)]
    gold = codec.encode(question.gold)
    return Row([*ids, *gold], [False] * len(ids) + [True] * len(gold))


def memory_probe(
    codec: Codec, agent: Agent, question: Question, right: str, empty: str
) -> tuple[Row, Row]:
    """The gold answer after the memory `right`, and after the memory `empty`."""
    first, second = (
        calibration_row(codec, agent, question, codec.encode(f"<mem>{memory}</mem>"))
        for memory in (right, empty)
    )
    return first, second


def atlas_batch(
    world: AtlasWorld,
    codec: Codec,
    agent: Agent,
    settings: Sft,
    *,
    key: tuple[Key, ...],
    progress: float,
) -> list[Row]:
    """`settings.batch_size` rows for the atlas world, a function of `key`.

    Half are steps of experts, an eighth whole ReAct trajectories, the rest calibration of
    P(answer | memory) and P(answer | history). Where there are other agents too, their steps are
    half of that half, shared equally; where no agent writes a memory nothing is calibrated. The
    number of objectives grows with `progress` (0..1): a third of the way with the smallest third,
    and so on.
    """
    rng = generator(*key)
    stage = min(int(progress * 3) + 1, 3)
    ladder = sorted(settings.objectives)[: -(-len(settings.objectives) * stage // 3)]
    size = settings.batch_size
    kinds = settings.kinds(agent.kind)
    agents = [agent_of(agent, kind) for kind in kinds]
    remembering = [a for a in agents if a.remembers]
    by_step: list[AgentKind] = [k for k in kinds if k != "react"]
    by_step.sort(key=lambda k: k != "self_memory")
    react = size // 8 if "react" in kinds else 0
    steps = size // 2 if remembering else size - react
    if not by_step:
        react = size

    def script(asked: Agent) -> Script:
        return world.script(world.question(int(rng.choice(ladder)), rng), asked, settings, rng)

    def acted(kind: AgentKind, until: int) -> None:
        asked = agent_of(agent, kind)
        while len(rows) < until:
            rows.extend(script_rows(codec, asked, script(asked)))
        del rows[until:]

    rows: list[Row] = []
    first = steps if len(by_step) == 1 else steps // 2
    others = max(len(by_step) - 1, 1)
    for i, kind in enumerate(by_step):
        acted(kind, first + i * (steps - first) // others)
    acted("react", len(rows) + react)
    while len(rows) < size:
        asked = remembering[int(rng.integers(len(remembering))) if len(remembering) > 1 else 0]
        if rng.random() < 0.75:
            question = world.question(int(rng.choice(ladder)), rng)
            rows.append(_memory_calibration(codec, asked, question, rng))
        else:
            asked = asked if rng.random() < 0.5 else agent_of(agent, "react")
            done = script(asked)
            context = []
            for step in done.steps[: int(rng.integers(len(done.steps)))]:
                context += codec.encode(step_text(step))
                context += reply_ids(codec, step.action, step.observation)
            rows.append(calibration_row(codec, asked, done.question, context))
    return rows


def _memory_calibration(
    codec: Codec, asked: Agent, question: Question, rng: np.random.Generator
) -> Row:
    """The gold answer after a memory of some of its facts; of two grains also after one alone."""
    share = rng.random()
    facts = [a[0] for a in question.answers if rng.random() < share]
    memory = memory_text(facts, question.parts, asked.grains)
    if asked.grains == 2 and (part := int(rng.integers(3))) < 2:
        summary, known = memory.split("</summary>")
        memory = f"{summary}</summary>" if part == 0 else known
    return calibration_row(codec, asked, question, codec.encode(f"<mem>{memory}</mem>"))


def agent_of(agent: Agent, kind: AgentKind) -> Agent:
    """The same settings for another kind of agent, as far as they have a meaning for it."""
    if kind == agent.kind:
        return agent
    other = agent.model_copy(update={"kind": kind, "function": ""})
    return other if other.remembers else other.model_copy(update={"grains": 1})
