"""The embedded default world: invented entities whose facts are drawn anew for each question.

Nothing can be learned by heart: a fact that is neither in the context nor in the memory is lost.
A fact is `attribute entity value value`; a question with n objectives asks for n keys
`attribute entity`, and the answer restates them: `a e v w; a e v w`. A search returns the
right fact among distractors (the same entity, the same attribute, others).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from mempo.config import Agent, Environment, Sft, writes_memory
from mempo.draws import Key, generator
from mempo.environments.experts import Script, ScriptedStep
from mempo.environments.world import Split, ToolError
from mempo.types import Question

EMPTY_MEMORY = "nothing"
_ID = "atlas-"  # how the id of every question begins
_FINISHES = 25  # second words of a value, shared by all attributes
_QUERIES = 0.5  # the expert asks its store as often as not, whether it needs to or not


def _words(count: int, ending: str, setting: str) -> list[str]:
    """`count` distinct invented words, the same ones at every call."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    syllables = [c + v for c, v in product(consonants, vowels)]
    pairs = [a + b for a, b in product(syllables, syllables)]
    if count > len(pairs):
        raise ValueError(
            f"environment.{setting}: the atlas can invent {len(pairs)} words of a kind, not "
            f"{count}; lower it"
        )
    order = generator("atlas", ending).permutation(len(pairs))
    return [pairs[i] + ending for i in order[:count]]


class AtlasWorld:
    """A `World` with endless questions. Facts of a question follow from its id alone."""

    waits = False

    def __init__(self, settings: Environment):
        self.settings = settings
        self.entities = _words(settings.entities, "n", "entities")
        self.attributes = _words(settings.attributes, "s", "attributes")
        values = _words(settings.attributes * settings.values, "x", "values")
        self.values = {
            a: values[i * settings.values : (i + 1) * settings.values]
            for i, a in enumerate(self.attributes)
        }
        self.finishes = _words(_FINISHES, "t", "finishes")
        self._facts: dict[str, dict[tuple[str, str], str]] = {}
        keys = settings.entities * settings.attributes
        if settings.reply_facts > keys:
            raise ValueError(
                f"environment.reply_facts is {settings.reply_facts}, but the atlas has only "
                f"{keys} facts (entities x attributes): lower it"
            )

    def words(self) -> list[str]:
        """Every word of the world: the vocabulary of a policy trained from scratch on it."""
        flat = [v for values in self.values.values() for v in values]
        return [*self.entities, *self.attributes, *flat, *self.finishes]

    def facts(self, question_id: str) -> dict[tuple[str, str], str]:
        """(attribute, entity) -> value: all facts of this question's own world."""
        if question_id not in self._facts:
            if len(self._facts) > 4096:
                self._facts.clear()
            rng = generator("atlas-facts", question_id)
            first = rng.integers(
                self.settings.values, size=(len(self.attributes), len(self.entities))
            )
            second = rng.integers(_FINISHES, size=first.shape)
            self._facts[question_id] = {
                (a, e): f"{self.values[a][first[i, j]]} {self.finishes[second[i, j]]}"
                for i, a in enumerate(self.attributes)
                for j, e in enumerate(self.entities)
            }
        return self._facts[question_id]

    def question(self, objectives: int, rng: np.random.Generator) -> Question:
        """A fresh question with `objectives` different keys."""
        keys = len(self.attributes) * len(self.entities)
        if objectives > keys:
            raise ValueError(
                f"environment.objectives asks for {objectives} facts, but the atlas has {keys}: "
                "lower it or raise environment.entities"
            )
        chosen = rng.choice(keys, size=objectives, replace=False)
        places = [divmod(k, len(self.attributes)) for k in chosen.tolist()]
        parts = [f"{self.attributes[a]} {self.entities[e]}" for e, a in places]
        number = int(rng.integers(2**62))
        question_id = f"{_ID}{objectives}-{number:016x}"
        facts = self.facts(question_id)
        answers = [[f"{p} {facts[_key(p)]}"] for p in parts]
        return Question(
            question_id, "; ".join(parts), objectives, answers, tuple(parts), source="atlas"
        )

    def questions(
        self, split: Split, count: int, *, objectives: int, key: tuple[Key, ...]
    ) -> list[Question]:
        rng = generator("atlas", split, objectives, *key)
        return [self.question(objectives, rng) for _ in range(count)]

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str | ToolError]:
        return [self._reply(q, query) for q, query in zip(questions, queries, strict=True)]

    def _reply(self, question: Question, query: str) -> str:
        """The facts nearest to the query, shuffled; a function of (question, query)."""
        facts = self.facts(question.id)
        words = query.split()
        attribute = next((w for w in words if w in self.values), None)
        entity = next((w for w in words if w in set(self.entities)), None)
        rng = generator("atlas-reply", question.id, query)
        keys: list[tuple[str, str]] = []
        if attribute and entity:
            keys.append((attribute, entity))
        near = [(attribute, e) for e in rng.permutation(self.entities).tolist()[:2] if attribute]
        near += [(a, entity) for a in rng.permutation(self.attributes).tolist()[:2] if entity]
        anything = [
            (a, e)
            for a, e in zip(
                rng.choice(self.attributes, 4 * self.settings.reply_facts).tolist(),
                rng.choice(self.entities, 4 * self.settings.reply_facts).tolist(),
                strict=True,
            )
        ]
        for k in [*near, *anything]:
            if k not in keys and len(keys) < self.settings.reply_facts:
                keys.append(k)
        shuffled = [keys[i] for i in rng.permutation(len(keys))]
        return " ; ".join(f"{a} {e} {facts[a, e]}" for a, e in shuffled)

    def max_steps(self, question: Question) -> int:
        return question.objectives + 2

    def script(
        self, question: Question, agent: Agent, settings: Sft, rng: np.random.Generator
    ) -> Script:
        """An expert's trajectory: one search per objective, then the answer.

        The memory is of mixed quality: a sloppy step drops each old fact with chance `drop`,
        misses the new one with `miss` or takes a wrong one from the reply with `wrong`. So is
        the use of a store: the last step asks it for each fact, or does not, by even chance.
        The answer is always the right one: where a fact was lost the policy learns to guess,
        which is what calibrates P(answer | memory).
        """
        parts, facts = question.parts, self.facts(question.id)
        kept: dict[str, str] = {}
        new: list[tuple[str, str]] = []  # (part, reply) that no memory has taken in yet
        steps: list[ScriptedStep] = []
        for i, part in enumerate([*parts, None]):
            memory = None
            if writes_memory(agent, i):
                for seen, reply in new:
                    kept = self._remember(kept, seen, reply, facts, settings, rng)
                new = []
                memory = memory_text(list(kept.values()), parts[:i], agent.grains)
            # The thought walks along the question: what was looked up last, then what is next.
            think = " ; ".join([*parts[:i][-1:], part or "done"])
            if part is not None:
                reply = self._reply(question, part)
                new.append((part, reply))
                steps.append(ScriptedStep(memory, think, "tool_call", part, reply))
                continue
            asked = [p for p in parts if agent.kind == "external" and rng.random() < _QUERIES]
            for at, key in enumerate(asked):
                kind = "segments" if rng.random() < 0.5 else "summaries"
                piece = f"{think if at == 0 else ''} {key}"
                steps.append(ScriptedStep(None, piece, "query", f"{kind} {key}", opened=at > 0))
            last = "" if asked else think
            steps.append(ScriptedStep(memory, last, "answer", question.gold, opened=bool(asked)))
        return Script(question, agent.kind, tuple(steps))

    def _remember(
        self,
        kept: dict[str, str],
        part: str,
        reply: str,
        facts: dict[tuple[str, str], str],
        settings: Sft,
        rng: np.random.Generator,
    ) -> dict[str, str]:
        new = f"{part} {facts[_key(part)]}"
        if rng.random() < settings.sloppy:
            kept = {k: v for k, v in kept.items() if rng.random() >= settings.drop}
            luck = rng.random()
            if luck < settings.miss:
                return kept
            if luck < settings.miss + settings.wrong:
                new = str(rng.choice([f for f in reply.split(" ; ") if f != new] or [new]))
        return {**kept, part: new}


def memory_text(facts: Sequence[str], looked_up: Sequence[str], grains: int) -> str:
    """A memory as the expert writes it: its facts and, of two grains, what was looked up.

    Facts are parted by a word that thoughts and questions do not have between their keys: a policy
    that looks back two tokens would take a thought for a memory, and what is learned of the one
    (after a key come its values) would spoil the other.
    """
    known = " , ".join(facts) or EMPTY_MEMORY
    if grains == 1:
        return known
    summary = " , ".join(looked_up) or EMPTY_MEMORY  # whether the fact was kept or not
    return f"<summary>{summary}</summary><facts>{known}</facts>"


def facts_of(question: Question) -> list[str]:
    """The facts that a question asks for, as replies and memories state them.

    Empty for a question of another world, which does not know them.
    """
    return [aliases[0] for aliases in question.answers] if question.id.startswith(_ID) else []


def _key(part: str) -> tuple[str, str]:
    attribute, entity = part.split()
    return attribute, entity
