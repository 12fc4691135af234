"""A world whose tool calls are answered by a function of the user's own (`environment.tool`)."""

from __future__ import annotations

from collections.abc import Sequence

from mempo import own
from mempo.environments.world import Split, ToolError, World
from mempo.types import Question


class OwnTool:
    """The questions of `world`, the replies of the function at `path`. Implements `world.World`."""

    def __init__(self, world: World, path: str) -> None:
        """Import the function. Raises a ValueError as `own.load` does."""
        self._world, self._path = world, path
        self._function = own.load("environment.tool", path)

    waits = True

    def questions(
        self, split: Split, count: int, *, objectives: int, key: tuple[str | int, ...]
    ) -> list[Question]:
        return self._world.questions(split, count, objectives=objectives, key=key)

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str | ToolError]:
        """One call of the function per query, in order; what it raises is that call's ToolError.

        So is a reply that is no text.
        """
        return [self._reply(q, query) for q, query in zip(questions, queries, strict=True)]

    def max_steps(self, question: Question) -> int:
        return self._world.max_steps(question)

    def _reply(self, question: Question, query: str) -> str | ToolError:
        try:
            reply = self._function(question, query)
        except ToolError as error:
            return error
        except Exception as error:  # a tool of the user's own may raise anything
            reason = f"{type(error).__name__}: {error}"
            return ToolError(f"environment.tool: {self._path} failed ({reason})")
        if not isinstance(reply, str):
            kind = type(reply).__name__
            return ToolError(f"environment.tool: {self._path} returned a {kind}; return a str")
        return reply
