"""Scripted trajectories for the cold start: what an expert of chosen quality would have done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mempo.types import Question


@dataclass(frozen=True)
class ScriptedStep:
    """One step in words; `observation` is the reply to a tool call, "" after an answer.

    A query to the agent's own store cuts a step in pieces: `action` is then "query", what the
    store says is known only where the script is rendered, and the next piece is `opened`.
    """

    memory: str | None  # None where no memory is written
    think: str
    action: Literal["tool_call", "answer", "query"]
    text: str
    observation: str = ""
    opened: bool = False  # an earlier piece has opened the thought


@dataclass(frozen=True)
class Script:
    """A whole scripted trajectory; `agent` is the kind of agent that it is for."""

    question: Question
    agent: str
    steps: tuple[ScriptedStep, ...]
