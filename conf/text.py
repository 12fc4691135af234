"""YAML as a configuration needs it: numbers like 3e-4 are numbers, a key said twice is an error."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Set
from pathlib import Path

import yaml


class ConfigError(ValueError):
    """A configuration that cannot be used; the text is one line: setting, fault, cure."""


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of YAML 1.2 where 1.1 surprises people."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"{_place(key_node)}: key {key!r} must be text")
            if key in seen:
                raise ConfigError(f"{_place(key_node)}: setting '{key}' is said twice; keep one")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# Without these, `no` would be False, `12:30` a number in base 60 and `2024-01-01` a date.
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rsplit(":", 1)[-1] not in ("bool", "float", "int", "timestamp", "merge")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?([0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def read_value(text: str, where: str) -> object:
    """The value that a piece of YAML means; ConfigError names `where` if it is none."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {_problem(error)}; quote the value if it is text") from None


def read_mapping(path: Path) -> dict[str, object]:
    """The settings in a YAML file; an empty file holds none."""
    try:
        with path.open(encoding="utf-8") as file:
            data = yaml.load(file, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"file '{path}' is not YAML: {_problem(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"file '{path}' cannot be read: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"file '{path}' must hold settings, one 'name: value' a line")
    return data


def check_keys(where: str, place: str, content: Mapping[str, object], known: Set[str]) -> None:
    """Raise ConfigError for a key of `content` that is not among the known ones."""
    unknown = sorted(set(content) - known)
    if unknown:
        allowed = ", ".join(sorted(known))
        raise ConfigError(f"{where}: unknown key {unknown[0]!r} in {place}; allowed: {allowed}")


def check_texts(where: str, key: str, value: object) -> tuple[str, ...]:
    """A list of overrides, empty where there is none; ConfigError if it is anything else."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{where}: {key!r} must be a list of 'section.setting=value'")
    return tuple(value)


def _place(node: yaml.Node) -> str:
    mark = node.start_mark
    return f"file '{mark.name}', line {mark.line + 1}"


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not YAML"
    return f"{problem}, line {mark.line + 1}" if mark else str(problem)
