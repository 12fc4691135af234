"""Errors of a configuration in one readable line: which setting, what is wrong, the cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conf.text import ConfigError
from mempo.config import Experiment
from mempo.config.addresses import redacted

_NEEDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list such as [1, 2]",
}


def unknown_setting(dotted: str, where: str, known: Sequence[str]) -> ConfigError:
    """The error for a setting that does not exist, with the closest one that does."""
    by_last_part = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    last = dotted.rsplit(".", 1)[-1]
    close = get_close_matches(dotted, known, n=1, cutoff=0.75)
    close = close or [by_last_part[name] for name in get_close_matches(last, by_last_part, n=1)]
    close = close or get_close_matches(dotted, known, n=1)
    cure = f"did you mean '{close[0]}'?" if close else "see `mempo train --help` for where to look"
    return ConfigError(f"unknown setting '{dotted}' ({where}); {cure}")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a preset, cluster or study that does not ship; lists those that do."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    guess = f"did you mean '{close[0]}'? " if close else ""
    return ConfigError(
        f"unknown {kind} '{name}'; {guess}known: {', '.join(known)}, or the path of a .yaml file"
    )


def explain(error: ValidationError, where: Mapping[str, str]) -> ConfigError:
    """The first fault that pydantic found, as a line; `where` says who set each setting."""
    faults = error.errors(include_url=False)
    fault = faults[0]
    if fault["type"] == "value_error":  # a rule over several settings, which names them itself
        return ConfigError(fault["msg"].removeprefix("Value error, "))
    parts = [str(part) for part in fault["loc"]]
    dotted = next(
        (name for name in (".".join(parts[:2]), parts[0] if parts else "") if name in where),
        ".".join(parts),
    )
    if fault["type"] == "password":
        return ConfigError(f"{dotted} {fault['msg']}")
    line = f"setting '{dotted}' = {redacted(repr(fault['input']))}"
    if dotted in where:
        line += f" ({where[dotted]})"
    line += f": {_fault(fault)}"
    if description := _description(dotted):
        line += f"; it is: {description}"
    if len(faults) > 1:
        line += f" [and {len(faults) - 1} more]"
    return ConfigError(line)


def _fault(fault: ErrorDetails) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _NEEDS:
        return _NEEDS[kind]
    if kind == "literal_error":
        return f"must be one of {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return fault["msg"].replace("Input should be", "must be", 1)


def _description(dotted: str) -> str:
    key, _, name = dotted.partition(".")
    field = Experiment.model_fields.get(key)
    if field is not None and name:
        field = getattr(field.annotation, "model_fields", {}).get(name)
    return " ".join((field.description or "").split()) if field else ""
