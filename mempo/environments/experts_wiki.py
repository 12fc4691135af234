"""The scripted expert for questions over real passages, for the cold start of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mempo.config import Agent, writes_memory
from mempo.environments.experts import Script, ScriptedStep
from mempo.environments.hops import Hop, Search, Shorten, plan
from mempo.environments.phrases import find, note
from mempo.types import Passage, Question

EMPTY_MEMORY = "nothing yet"
_SELF_MEMORY = Agent()


def script_for(
    question: Question,
    *,
    search: Search,
    passages: Mapping[str, Passage],
    shorten: Shorten,
    rng: np.random.Generator,
    sloppy: float = 0.8,
    drop: float = 0.7,
    miss: float = 0.15,
    wrong: float = 0.1,
    agent: Agent = _SELF_MEMORY,
) -> Script | None:
    """One trajectory of the expert, or None where it has no plan (see `plan`).

    The objectives are worked on one after another, one search a hop. The memory is of mixed
    quality: a step is sloppy with chance `sloppy`, and then drops each old fact with chance
    `drop` and misses the new one with `miss` or notes another passage's with `wrong`.

    The last step always gives the gold answers, also where the memory lost a fact: there the
    policy learns to guess, which keeps P(answer | memory) low for a poor memory, and its thought
    says so. Searching again instead would hide from the reward what a memory lost, and teaches
    a small model to search for ever.
    """
    hops_by_objective = plan(question, search=search, passages=passages, shorten=shorten)
    if hops_by_objective is None:
        return None
    kept: list[dict[int, str]] = [{} for _ in hops_by_objective]
    new: list[tuple[int, int, Hop]] = []  # replies that no memory has taken in yet
    steps: list[ScriptedStep] = []

    def memory() -> str | None:
        nonlocal kept
        if not writes_memory(agent, len(steps)):
            return None
        for found in new:
            kept = _remember(kept, *found, rng, sloppy=sloppy, drop=drop, miss=miss, wrong=wrong)
        return format_memory([list(facts.values()) for facts in kept])

    for k, hops in enumerate(hops_by_objective):
        for i, hop in enumerate(hops):
            shown = memory()
            new = [*new, (k, i, hop)] if shown is None else [(k, i, hop)]
            think = f"[{k + 1}] Look up {hop.name or 'the question'}."
            steps.append(ScriptedStep(shown, think, "tool_call", hop.query, _reply(hop.found)))
    shown = memory()
    seen = [hop for _, _, hop in new]  # replies that the last step still has in view
    lost = _lost(kept, hops_by_objective, seen) if agent.remembers else []
    think = f"{' '.join(f'[{k + 1}]' for k in lost)} lost, I guess." if lost else "I can answer."
    steps.append(ScriptedStep(shown, think, "answer", question.gold))
    return Script(question, agent.kind, tuple(steps))


def calibration_pairs(
    question: Question,
    *,
    search: Search,
    passages: Mapping[str, Passage],
    shorten: Shorten,
    rng: np.random.Generator,
) -> list[tuple[str, str]]:
    """(memory, gold answer) pairs that teach P(answer | memory); empty where there is no plan.

    The memories are the right one, one with a fact lost, one with each fact lost by even chance,
    and the empty one; equal ones are given once. The answer is always the gold one, so that its
    probability says how much of it a memory holds.
    """
    hops_by_objective = plan(question, search=search, passages=passages, shorten=shorten)
    if hops_by_objective is None:
        return []
    places = [(k, i) for k, hops in enumerate(hops_by_objective) for i in range(len(hops))]
    lost_one = {places[int(rng.integers(len(places)))]}
    lost_half = {place for place in places if rng.random() < 0.5}
    memories = [
        format_memory(
            [
                [hop.fact for i, hop in enumerate(hops) if (k, i) not in lost]
                for k, hops in enumerate(hops_by_objective)
            ]
        )
        for lost in (set[tuple[int, int]](), lost_one, lost_half, set(places))
    ]
    return [(memory, question.gold) for memory in dict.fromkeys(memories)]


def format_memory(facts: Sequence[Sequence[str]]) -> str:
    """`[1] fact | fact [2] fact`: facts by objective; `EMPTY_MEMORY` where there are none."""
    blocks = [f"[{k + 1}] {' | '.join(known)}" for k, known in enumerate(facts) if known]
    return " ".join(blocks) or EMPTY_MEMORY


def _remember(
    kept: Sequence[Mapping[int, str]],
    objective: int,
    index: int,
    hop: Hop,
    rng: np.random.Generator,
    *,
    sloppy: float,
    drop: float,
    miss: float,
    wrong: float,
) -> list[dict[int, str]]:
    """The memory after a reply: old facts by objective and hop, and what is noted of the new."""
    old = [dict(facts) for facts in kept]
    fact = hop.fact
    if rng.random() < sloppy:
        old = [{i: f for i, f in facts.items() if rng.random() >= drop} for facts in old]
        luck = rng.random()
        others = [p for p in hop.found if p.id != hop.passage.id]
        if luck < miss:
            return old
        if luck < miss + wrong and others:
            other = others[int(rng.integers(len(others)))]
            fact = note(other.title, other.text)
    old[objective][index] = fact
    return old


def _lost(
    kept: Sequence[Mapping[int, str]], plans: Sequence[Sequence[Hop]], seen: Sequence[Hop]
) -> list[int]:
    """Objectives whose answer is neither in the memory nor in the replies `seen`."""
    return [
        k
        for k, (facts, hops) in enumerate(zip(kept, plans, strict=True))
        if not _holds(facts, hops, seen)
    ]


def _holds(facts: Mapping[int, str], hops: Sequence[Hop], seen: Sequence[Hop]) -> bool:
    """Whether the facts, with those of the hops `seen`, answer the objective of `hops`."""
    in_view = [any(hop is other for other in seen) for hop in hops]
    answers = [hop.answer for hop in hops if hop.answer]
    if answers:
        shown = [hop.fact for hop, visible in zip(hops, in_view, strict=True) if visible]
        return any(find(fact, answer) for fact in [*facts.values(), *shown] for answer in answers)
    # A comparison needs every fact.
    return all(
        visible or facts.get(i) == hop.fact
        for i, (hop, visible) in enumerate(zip(hops, in_view, strict=True))
    )


def _reply(found: Sequence[Passage]) -> str:
    """Search results as the world shows them."""
    return "\n".join(
        f"[{i}] {p.title}: {p.text}" if p.title else f"[{i}] {p.text}"
        for i, p in enumerate(found, start=1)
    )
