"""Scripted trajectories as training rows for the cold start (SFT)."""

from __future__ import annotations

from mempo.agent.memory import prompt_ids
from mempo.agent.protocol import ANSWER_OPEN, head_ids, information_ids, parse_step, token_span
from mempo.config import Agent, Sft
from mempo.draws import Key, generator
from mempo.environments.atlas import EMPTY_MEMORY, AtlasWorld
from mempo.environments.experts import Script, ScriptedStep
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step


def step_text(step: ScriptedStep) -> str:
    """The text a policy would have written for a scripted step."""
    memory = f"<mem>{step.memory}</mem>" if step.memory is not None else ""
    return f"{memory}<think>{step.think}</think><{step.action}>{step.text}</{step.action}>"


def script_rows(codec: Codec, agent: Agent, script: Script) -> list[Row]:
    """One row per step, prompts as the agent would have seen them; every output token a target.

    An agent that sees its whole history is one row: each step's prompt is the row so far.
    """
    agent = agent.model_copy(update={"kind": script.agent})
    head = head_ids(codec, agent, script.question)
    steps: list[Step] = []
    rows: list[Row] = []
    for scripted in script.steps:
        prompt = prompt_ids(agent, codec, head, steps)
        step = scripted_as_step(codec, scripted, prompt, len(head))
        rows.append(
            Row(
                [*prompt, *step.output_ids],
                [False] * len(prompt) + [True] * len(step.output_ids),
            )
        )
        steps.append(step)
    if agent.kind == "react" or agent.history == "all":
        ids, mask = list(head), [False] * len(head)
        for step in steps:
            ids += [*step.output_ids, *step.observation_ids]
            mask += [True] * len(step.output_ids) + [False] * len(step.observation_ids)
        return [Row(ids, mask)]
    return rows


def scripted_as_step(
    codec: Codec, scripted: ScriptedStep, prompt: list[int], head_tokens: int
) -> Step:
    """A scripted step in the form of a sampled one (log-probs unknown, so none)."""
    output = codec.encode(step_text(scripted))
    text, offsets = codec.text_and_offsets(output)
    at = parse_step(text, memory=scripted.memory is not None).memory_at
    return Step(
        prompt_ids=prompt,
        head_tokens=head_tokens,
        output_ids=output,
        logprobs=[],
        finish_reason="stop",
        mem_spans=[token_span(offsets, *at)] if at else [],
        memory=scripted.memory,
        action=scripted.action,
        action_text=scripted.text,
        well_formed=True,
        observation=scripted.observation,
        observation_ids=information_ids(codec, scripted.observation)
        if scripted.action == "tool_call"
        else [],
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

    Half are steps of the self-memory expert, an eighth whole ReAct trajectories, the rest
    calibration of P(answer | memory) and P(answer | history). The number of objectives grows
    with `progress` (0..1): a third of the way with the smallest third, and so on.
    """
    rng = generator(*key)
    stage = min(int(progress * 3) + 1, 3)
    ladder = sorted(settings.objectives)[: -(-len(settings.objectives) * stage // 3)]
    size = settings.batch_size
    rows: list[Row] = []

    def script(kind: str) -> Script:
        question = world.question(int(rng.choice(ladder)), rng)
        return world.script(question, kind, settings, rng)

    while len(rows) < size // 2:
        rows += script_rows(codec, agent, script("self_memory"))
    del rows[size // 2 :]
    for _ in range(size // 8):
        rows += script_rows(codec, agent, script("react"))
    while len(rows) < size:
        if rng.random() < 0.75:
            question = world.question(int(rng.choice(ladder)), rng)
            share = rng.random()
            facts = [a[0] for a in question.answers if rng.random() < share]
            memory = " ; ".join(facts) or EMPTY_MEMORY
            context = codec.encode(f"<mem>{memory}</mem>")
            rows.append(calibration_row(codec, agent, question, context))
        else:
            kind = "self_memory" if rng.random() < 0.5 else "react"
            done = script(kind)
            context = []
            for step in done.steps[: int(rng.integers(len(done.steps)))]:
                context += codec.encode(step_text(step))
                context += information_ids(codec, step.observation)
            asked = agent.model_copy(update={"kind": kind})
            rows.append(calibration_row(codec, asked, done.question, context))
    return rows
