"""Scripted trajectories for the cold start: what an expert of chosen quality would have done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mempo.types import Question


@dataclass(frozen=True)
class ScriptedStep:
    """One step in words; `observation` is the reply to a tool call, "" after an answer."""

    memory: str | None  # None for agents without a memory
    think: str
    action: Literal["tool_call", "answer"]
    text: str
    observation: str = ""


@dataclass(frozen=True)
class Script:
    """A whole scripted trajectory of one agent."""

    question: Question
    agent: Literal["self_memory", "react"]
    steps: tuple[ScriptedStep, ...]
