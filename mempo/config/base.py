"""What all settings have in common, and types that several of them use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from mempo.config.addresses import holds_password

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
AgentKind = Literal["self_memory", "react", "truncation", "summary", "retrieval", "external"]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown or misspelled key is an error."""

    # Errors do not repeat what was given: it may be an address with a password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @field_validator("*")
    @classmethod
    def _without_password(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and holds_password(value):
            cure = _CURES.get(info.field_name or "", "keep the password in the environment")
            raise PydanticCustomError("password", _REFUSAL, {"cure": cure})
        return value


_REFUSAL = (
    "holds a password, and settings are recorded and shown; write the address without it and {cure}"
)
_CURES = {
    "uri": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, or "
    "MEMPO_DATABASE_URL for a database",
    "retriever_url": "set MEMPO_RETRIEVER_TOKEN in the environment, which is sent as a Bearer "
    "token",
}
