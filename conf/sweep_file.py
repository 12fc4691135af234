"""What a sweep's YAML file says, read and checked; `conf.sweep` makes configurations of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

from conf.load import known_setting, setting_type
from conf.study_file import check_seeds
from conf.text import ConfigError, check_keys, check_texts, read_mapping
from mempo.config.space import Dimension

Method = Literal["grid", "random", "tpe"]

KEYS = {
    *("description", "preset", "seeds", "set", "method", "trials", "parallel", "metric"),
    *("prune", "space"),
}
RANGE_KEYS = {"low", "high", "log", "step"}
METRIC = re.compile(r"(eval|eval_sampled)/n([1-9]\d*)/(em|f1|format|p_answer)")
# Sections that do not change a trial's value; of `seed` the file itself says which.
NO_EFFECT = ("preset", "seed", "tracking", "cluster", "checkpoint", "price", "sft")
# What decides which questions are asked, and how: trials are compared on the same ones.
MEASURE = {"objectives", "questions", "temperature", "sampled", "passes", "every", "seed"}
MOST = 10_000  # trials of a sweep: each is a run


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep's file."""

    path: Path
    description: str
    preset: str
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    method: Method
    trials: int
    parallel: int
    metric: str
    prune: bool
    space: tuple[Dimension, ...]


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep's file. Raises ConfigError in one line that names the key and the cure."""
    content, where = read_mapping(path), f"sweep {path.name}"
    check_keys(where, "the sweep", content, KEYS)
    settings = check_texts(where, "set", content.get("set"))
    space = _space(where, content.get("space"))
    taken = {dimension.setting for dimension in space}
    check_free(f"{where}: 'set'", settings, taken)
    method = _method(where, content.get("method", "tpe"))
    prune = content.get("prune", False)
    if not isinstance(prune, bool):
        raise ConfigError(f"{where}: 'prune' = {prune!r}; must be true or false")
    if prune and method == "grid":
        raise ConfigError(f"{where}: 'prune' is true, but a grid measures every point; drop one")
    return SweepFile(
        path,
        str(content.get("description", "")),
        str(content.get("preset", "demo")),
        check_seeds(f"{where}: 'seeds'", content.get("seeds", [0])),
        settings,
        method,
        _trials(where, content.get("trials"), method, space),
        _positive(where, "parallel", content.get("parallel", 1)),
        _metric(where, content.get("metric")),
        prune,
        space,
    )


def check_free(where: str, settings: tuple[str, ...] | list[str], taken: set[str]) -> None:
    """What is searched for cannot be set, too."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in taken:
            raise ConfigError(f"{where} and 'space' both name {name}; drop one")


def _method(where: str, value: object) -> Method:
    for known in get_args(Method):
        if value == known:
            return known
    raise ConfigError(
        f"{where}: 'method' = {value!r}; must be one of {', '.join(get_args(Method))}"
    )


def _positive(where: str, key: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: {key!r} = {value!r}; must be a whole number above 0")
    return value


def _trials(where: str, value: object, method: str, space: tuple[Dimension, ...]) -> int:
    if method != "grid":
        if value is None:
            raise ConfigError(f"{where}: 'trials' is missing; say how many, as in 'trials: 20'")
        return _bounded(where, _positive(where, "trials", value))
    if value is not None:
        raise ConfigError(
            f"{where}: 'trials' is of no use to a grid, which has all points; drop it"
        )
    for dimension in space:
        if not dimension.countable:
            raise ConfigError(
                f"{where}: 'space.{dimension.setting}' has endless values, and a grid lists all; "
                "give choices, as in [0.1, 0.2], or a step"
            )
    return _bounded(where, math.prod(len(dimension.values) for dimension in space))


def _bounded(where: str, trials: int) -> int:
    if trials > MOST:
        raise ConfigError(f"{where}: {trials} trials; at most {MOST}, so give fewer or choices")
    return trials


def _metric(where: str, value: object) -> str:
    if not isinstance(value, str) or not METRIC.fullmatch(value):
        raise ConfigError(
            f"{where}: 'metric' = {value!r}; must be an evaluation metric of which more is better: "
            "eval/nK/NAME or eval_sampled/nK/NAME, NAME being em, f1, format or p_answer, as in "
            "'metric: eval_sampled/n4/f1'"
        )
    return value


def _space(where: str, value: object) -> tuple[Dimension, ...]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            f"{where}: 'space' must name at least one setting, as in "
            "'space: {learner.lr: {low: 1.0e-4, high: 1.0e-3, log: true}}'"
        )
    return tuple(_dimension(where, setting, spec) for setting, spec in value.items())


def _dimension(where: str, setting: str, spec: object) -> Dimension:
    place = f"{where}: 'space.{setting}'"
    known_setting(setting, f"{where}, space")
    section, _, name = setting.partition(".")
    if section in NO_EFFECT or setting == "evaluate.before":
        raise ConfigError(f"{place} has no effect on what a trial measures; drop it")
    if section == "evaluate" and name in MEASURE:
        raise ConfigError(
            f"{place} decides what is measured, which must be the same for all trials; put it "
            "into 'set'"
        )
    if isinstance(spec, list):
        return _choices(place, setting, spec)
    if isinstance(spec, dict):
        return _range(place, setting, spec)
    raise ConfigError(
        f"{place} must be a list of choices, as in [0.5, 1.0], or a range, as in "
        "{low: 0.1, high: 1.0}"
    )


def _choices(place: str, setting: str, spec: list[object]) -> Dimension:
    texts = [json.dumps(choice) for choice in spec]
    if len(texts) < 2:
        raise ConfigError(f"{place} has {len(texts)} choices; give two or more, or use 'set'")
    twice = [text for text in texts if texts.count(text) > 1]
    if twice:
        raise ConfigError(f"{place} says {twice[0]} twice; keep one")
    return Dimension(setting, choices=tuple(spec))


def _range(place: str, setting: str, spec: dict[str, object]) -> Dimension:
    check_keys(place, "the range", spec, RANGE_KEYS)
    kind = setting_type(setting)
    if kind not in (int, float):
        raise ConfigError(f"{place} is no number, so it has no range; give a list of choices")
    whole = kind is int
    low, high = (_number(place, key, spec.get(key), whole) for key in ("low", "high"))
    if not low < high:
        raise ConfigError(f"{place}: low = {low} must be below high = {high}")
    log = spec.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"{place}: log = {log!r}; must be true or false")
    if log and low <= 0:
        raise ConfigError(f"{place}: low = {low} has no logarithm; raise it above 0, or drop log")
    step = 0.0
    if "step" in spec:
        step = _number(place, "step", spec["step"], whole)
        if log or step <= 0:
            raise ConfigError(f"{place}: step = {step} must be above 0 and goes without log")
        if (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
            raise ConfigError(f"{place}: steps of {step} from {low} do not meet {high}; correct it")
    return Dimension(setting, low=low, high=high, step=step, log=log, whole=whole)


def _number(place: str, key: str, value: object, whole: bool) -> float:
    wanted = "a whole number" if whole else "a number"
    if type(value) not in ((int,) if whole else (int, float)) or not math.isfinite(value):  # pyright: ignore[reportArgumentType]
        raise ConfigError(f"{place}: {key} = {value!r}; must be {wanted}")
    assert isinstance(value, int | float)
    return value
