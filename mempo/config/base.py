"""What all settings have in common, and types that several of them use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
AgentKind = Literal["self_memory", "react", "truncation", "summary", "retrieval", "external"]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown or misspelled key is an error."""

    # Errors do not repeat what was given: it may be an address with a password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
