"""The vocabulary of the library: what flows from an environment to a learner.

Shape letters, used in names and docstrings everywhere:

    Q  questions                 S  steps of one trajectory
    G  rollouts of one question  T  tokens of one sequence
    L  tokens of a gold answer   V  vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Action = Literal["tool_call", "answer", "query", "none"]  # query: to the agent's own store
Status = Literal[
    "answered", "step_limit", "context_overflow", "truncated", "bad_format", "tool_error"
]
FinishReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True)
class Passage:
    """One piece of text that a retriever can return."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A task: one or several objectives that are asked, and answered, together.

    `answers[k]` are the accepted aliases of objective k, the first of them canonical.
    `parts[k]` is objective k's own wording where it is known, and `supporting_ids[k]` the
    passages that answer it; both are empty where the source does not say.
    """

    id: str
    text: str
    objectives: int
    answers: list[list[str]]
    parts: tuple[str, ...] = ()
    supporting_ids: tuple[tuple[str, ...], ...] = ()
    source: str = ""

    @property
    def gold(self) -> str:
        """The canonical answers, joined the way the policy has to write them."""
        return "; ".join(aliases[0] for aliases in self.answers)


@dataclass(frozen=True)
class Request:
    """One prompt for a sampler. `key` decides its draws, whatever the batch or the order."""

    prompt_ids: list[int]
    max_tokens: int
    key: tuple[str | int, ...]
    without_ids: list[int] | None = None  # the prompt without its memory, where that is weighted


@dataclass(frozen=True)
class Completion:
    """What a sampler returned for one prompt; `ids` are never decoded and encoded again."""

    ids: list[int]  # [T]
    logprobs: list[float]  # [T], of the distribution that was really sampled from
    finish_reason: FinishReason
    cached_tokens: int = 0  # of the prompt, that the engine had computed before


@dataclass
class Step:
    """One step as the policy lived it. The unit of storage, scoring and training."""

    prompt_ids: list[int]  # exactly what the policy saw
    head_tokens: int  # the first `head_tokens` of prompt_ids are system prompt and question
    output_ids: list[int]  # [T]
    logprobs: list[float]  # [T]
    finish_reason: FinishReason
    mem_spans: list[tuple[int, int]]  # [start, end) in output_ids, one per memory grain
    memory: str | None
    action: Action
    action_text: str
    well_formed: bool
    observation: str = ""  # the reply of the tool or of the store, "" where none was asked
    observation_ids: list[int] = field(default_factory=list)  # its tokens, tags and glue included
    policy_version: int = 0
    cached_tokens: int = 0  # of the prompt, from the sampler's prefix cache


@dataclass(frozen=True)
class Row:
    """One sequence; position i of `ids` is a target where `mask[i]` (never i = 0)."""

    ids: list[int]  # [T]
    mask: list[bool]  # [T]

    @property
    def targets(self) -> int:
        return sum(self.mask)


@dataclass
class Trajectory:
    """All steps of one rollout of one question, how it ended and what it earned."""

    question: Question
    rollout: int  # index in the group, 0..G-1
    steps: list[Step]
    status: Status
    answer: str = ""
    reward: float = 0.0
    f1: float = 0.0
    em: float = 0.0
    format: float = 0.0  # 1.0 where every step was well formed
