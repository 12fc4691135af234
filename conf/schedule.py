"""Schedules: which deployment starts when, with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from conf.load import CONF
from conf.text import ConfigError, read_mapping

FOLDER = CONF / "schedule"
KEYS = ("deployment", "cron", "interval", "rrule", "timezone", "active", "parameters", "set")
TIMINGS = ("cron", "interval", "rrule")


@dataclass(frozen=True)
class Schedule:
    """One file under conf/schedule/; its stem is the schedule's name on the server.

    timing    `cron`, `interval` (seconds) or `rrule`, with `when` as its value
    active    whether it is on when it first comes to the server; later the server's switch counts
    settings  changes to the preset of a deployment that has one, each 'section.setting=value'
    """

    file: str  # its name
    deployment: str  # flow/deployment, such as train/demo
    timing: str
    when: str | int
    timezone: str = "UTC"
    active: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.file).stem


def load_schedules(folder: Path = FOLDER) -> list[Schedule]:
    """The schedules in a folder, by name. Raises ConfigError in one line."""
    if not folder.is_dir():
        raise ConfigError(f"--schedules: there is no folder {folder}; give an existing one")
    files = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in (".yaml", ".yml") and not path.name.startswith(".")
    ]
    found = [_read(path) for path in sorted(files, key=lambda path: (path.stem, path.suffix))]
    for one, next_one in pairwise(found):
        if one.name == next_one.name:
            raise ConfigError(
                f"schedule {next_one.file}: {one.file} has its name, too; rename one of them"
            )
    return found


def _read(path: Path) -> Schedule:
    data = read_mapping(path)
    where = f"schedule {path.name}"
    if unknown := sorted(set(data) - set(KEYS)):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(KEYS)}")
    deployment = data.get("deployment")
    if not isinstance(deployment, str) or deployment.count("/") != 1:
        raise ConfigError(f"{where}: 'deployment' must be FLOW/NAME, such as train/demo")
    given = [name for name in TIMINGS if name in data]
    if len(given) != 1:
        raise ConfigError(f"{where}: say when by exactly one of {', '.join(TIMINGS)}")
    when = data[given[0]]
    wanted: type = int if given[0] == "interval" else str
    if not isinstance(when, wanted) or isinstance(when, bool) or not when:
        raise ConfigError(
            f"{where}: '{given[0]}' = {when!r} must be "
            + ("whole seconds, such as 3600" if wanted is int else "text, in quotes")
        )
    if wanted is int and when < 1:  # pyright: ignore[reportOperatorIssue]
        raise ConfigError(f"{where}: 'interval' = {when} must be at least a second")
    active, parameters = data.get("active", True), data.get("parameters") or {}
    if not isinstance(active, bool):
        raise ConfigError(f"{where}: 'active' must be true or false")
    if not isinstance(parameters, dict):
        raise ConfigError(f"{where}: 'parameters' must be 'name: value' lines")
    settings = data.get("set") or []
    if not isinstance(settings, list) or not all(isinstance(s, str) for s in settings):
        raise ConfigError(f"{where}: 'set' must be a list of 'section.setting=value'")
    timezone = data.get("timezone", "UTC")
    try:
        ZoneInfo(str(timezone))
    except (ValueError, OSError, KeyError):
        raise ConfigError(
            f"{where}: 'timezone' = {timezone!r} is unknown; give one such as Europe/Berlin"
        ) from None
    return Schedule(
        path.name,
        deployment,
        given[0],
        when,  # pyright: ignore[reportArgumentType]
        str(timezone),
        active,
        parameters,
        tuple(settings),
    )
