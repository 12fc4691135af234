"""What a study's YAML file says, read and checked; `conf.study` makes runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.text import ConfigError, check_keys, check_texts, read_mapping

KNOWN = {"description", "preset", "seeds", "set", "starts", "variants", "best", "baseline"}
VARIANT_KEYS = {"method", "set", "seeds", "from"}
MODEL = "policy.model"
METRICS = ("em", "f1", "format", "p_answer")  # of an evaluation, more is better
MODES = ("greedy", "sampled")


@dataclass(frozen=True)
class Best:
    """Which variant stands for a method that has several: the best mean over its seeds."""

    metric: str = "em"
    objectives: int = 4
    mode: str = "sampled"


@dataclass(frozen=True)
class Variant:
    """One thing to compare, before it is multiplied by starts and seeds."""

    name: str
    method: str  # how tables and pictures call it
    settings: tuple[str, ...]
    seeds: tuple[int, ...] = ()  # of its own; empty: the study's
    source: str = ""  # the variant whose last checkpoint it starts from
    depth: int = 0  # how many variants must have run before it


@dataclass(frozen=True)
class StudyFile:
    """The content of a study's file."""

    path: Path
    description: str
    preset: str
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    starts: dict[str, str]  # name -> policy.model
    variants: tuple[Variant, ...]  # a variant stands after the one that it starts from
    best: Best | None
    baseline: str  # the method that differences are to; empty: the report's default


def read_study(path: Path) -> StudyFile:
    """Read a study's file. Raises ConfigError in one line that names the key and the cure."""
    content = read_mapping(path)
    check_keys(f"study {path.name}", "the study", content, KNOWN)
    settings = check_texts(f"study {path.name}", "set", content.get("set"))
    starts = _starts(path, content.get("starts"))
    if starts and sets_model(settings):
        raise ConfigError(f"study {path.name}: 'set' and 'starts' both name {MODEL}; drop one")
    variants = _variants(path, content.get("variants"), bool(starts))
    return StudyFile(
        path,
        str(content.get("description", "")),
        str(content.get("preset", "demo")),
        check_seeds(f"study {path.name}: 'seeds'", content.get("seeds", [0])),
        settings,
        starts,
        variants,
        _best(path, content.get("best")),
        _baseline(path, content.get("baseline"), [variant.method for variant in variants]),
    )


def sets_model(settings: Sequence[str]) -> bool:
    """Whether one of the overrides is about the policy that runs start from."""
    return any(setting.partition("=")[0].strip() == MODEL for setting in settings)


def check_seeds(where: str, value: object) -> tuple[int, ...]:
    """Seeds as they were written, at least one and none twice."""
    if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
        raise ConfigError(f"{where} must be a list of whole numbers, such as [101, 102]")
    twice = [seed for seed in value if value.count(seed) > 1]
    if twice:
        raise ConfigError(f"{where} says {twice[0]} twice; keep one")
    return tuple(value)


def _variants(path: Path, value: object, starts: bool) -> tuple[Variant, ...]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"study {path.name}: 'variants' must name at least one variant")
    sources = {}
    for name, spec in value.items():
        spec = {} if spec is None else spec  # a variant may be its name alone
        if not isinstance(spec, dict):
            raise ConfigError(
                f"study {path.name}: variants.{name} takes {', '.join(sorted(VARIANT_KEYS))}, "
                f"as in '{name}: {{method: NAME, set: [section.setting=value]}}'"
            )
        check_keys(f"study {path.name}", f"variants.{name}", spec, VARIANT_KEYS)
        sources[name] = spec.get("from", "")
    found = [
        _variant(path, name, spec or {}, _depth(path, name, sources), starts)
        for name, spec in value.items()
    ]
    return tuple(sorted(found, key=lambda variant: variant.depth))


def _variant(path: Path, name: str, spec: dict, depth: int, starts: bool) -> Variant:
    settings = check_texts(f"study {path.name}", f"variants.{name}.set", spec.get("set"))
    if sets_model(settings) and (starts or depth):
        other = "'from'" if depth else "'starts'"
        raise ConfigError(
            f"study {path.name}: variants.{name}.set and {other} both name {MODEL}; drop one"
        )
    seeds = ()
    if "seeds" in spec:
        seeds = check_seeds(f"study {path.name}: 'variants.{name}.seeds'", spec["seeds"])
    return Variant(
        name, str(spec.get("method", name)), settings, seeds, spec.get("from", ""), depth
    )


def _depth(path: Path, name: str, sources: dict[str, object]) -> int:
    """How many variants `name` has behind it."""
    trail = [name]
    while sources[trail[-1]] != "":
        source = sources[trail[-1]]
        if not isinstance(source, str) or source not in sources:
            raise ConfigError(
                f"study {path.name}: 'variants.{trail[-1]}.from' = {source!r} is no variant of "
                f"this study; there are: {', '.join(sources)}"
            )
        trail.append(source)
        if trail.count(trail[-1]) > 1:
            raise ConfigError(
                f"study {path.name}: 'variants.{name}.from' goes round in a circle: "
                f"{' -> '.join(trail)}; drop one of them"
            )
    return len(trail) - 1


def _starts(path: Path, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(v and isinstance(v, str) for v in value.values()):
        raise ConfigError(
            f"study {path.name}: 'starts' must give each start a name and a {MODEL}, "
            "as in 'starts: {a: models/a, b: models/b}'"
        )
    return value


def _best(path: Path, value: object) -> Best | None:
    if value is None:
        return None
    try:
        best = Best(**value) if isinstance(value, dict) else None
    except TypeError:
        best = None
    if best is None or best.metric not in METRICS or best.mode not in MODES:
        raise ConfigError(
            f"study {path.name}: 'best' takes metric ({', '.join(METRICS)}), objectives and mode "
            f"({', '.join(MODES)}), as in 'best: {{metric: em, objectives: 4, mode: sampled}}'"
        )
    return best


def _baseline(path: Path, value: object, methods: list[str]) -> str:
    if value is None:
        return ""
    if str(value) not in methods:
        raise ConfigError(
            f"study {path.name}: 'baseline' = {value!r} is no method of this study; there are: "
            + ", ".join(dict.fromkeys(methods))
        )
    return str(value)
