"""The interface of an environment: it asks questions and answers tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from mempo.types import Question

Split = Literal["train", "test"]


class ToolError(Exception):
    """A tool could not serve one call; only that call's rollout ends, as `tool_error`."""


class World(Protocol):
    """What the agent loop needs of an environment; `atlas` and `datasets` are the two there are."""

    @property
    def waits(self) -> bool:
        """Whether a reply takes time beside which others can compute: a server, own code."""
        ...

    def questions(
        self, split: Split, count: int, *, objectives: int, key: tuple[str | int, ...]
    ) -> list[Question]:
        """`count` questions with `objectives` objectives each, a function of `key` alone."""
        ...

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str | ToolError]:
        """One reply per (question, query) pair; a failed call is returned, never raised."""
        ...

    def max_steps(self, question: Question) -> int:
        """Steps a trajectory of this question may take where the agent sets no limit."""
        ...
