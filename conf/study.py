"""Studies: variants x seeds from one start, so that comparisons are paired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.load import CONF, load
from conf.text import ConfigError, read_mapping
from mempo.config import Experiment

KNOWN = {"description", "preset", "seeds", "set", "variants", "best"}
VARIANT_KEYS = {"method", "set", "seeds"}


@dataclass(frozen=True)
class Child:
    """One run of a study."""

    method: str  # how tables and pictures call it
    variant: str
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        return f"{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class Best:
    """Which variant stands for a method that has several: the best mean over its seeds."""

    metric: str = "em"
    objectives: int = 4
    mode: str = "sampled"


@dataclass(frozen=True)
class Study:
    """A comparison: what it runs, and what it is for."""

    name: str
    description: str
    children: tuple[Child, ...]
    best: Best | None = None


def studies() -> dict[str, str]:
    """Every study that ships, by name, with its description."""
    return {
        path.stem: str(read_mapping(path).get("description", ""))
        for path in sorted((CONF / "study").glob("*.yaml"))
    }


def load_study(
    name: str,
    *,
    seeds: list[int] | None = None,
    cluster: str = "local",
    overrides: list[str] | None = None,
) -> Study:
    """Read `conf/study/<name>.yaml`, or the file `name`.

    A study is `preset`, `seeds`, common settings `set: [a.b=c]`, and `variants`, each with
    `method` (the name in tables), `set` and, where it has no training and so no seed of its
    own, `seeds: [n]`. Of several variants of one method the best stands for it; `best` names
    the metric, objectives and mode that decide. `overrides` win over all settings. Raises
    ConfigError in one line.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else CONF / "study" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(studies())
        raise ConfigError(f"unknown study {name!r}; there are: {known}; or give a YAML file")
    content = read_mapping(path)
    unknown = sorted(set(content) - KNOWN)
    if unknown:
        raise ConfigError(
            f"study {path.name}: unknown key {unknown[0]!r}; allowed: {', '.join(sorted(KNOWN))}"
        )
    variants = content.get("variants")
    if not isinstance(variants, dict) or not variants:
        raise ConfigError(f"study {path.name}: 'variants' must name at least one variant")
    common = _texts(path, "set", content.get("set"))
    wanted = seeds or _seeds(path, "seeds", content.get("seeds", [0]))
    children = []
    for variant, spec in variants.items():
        spec = _variant(path, str(variant), spec)
        for seed in spec.get("seeds", wanted):
            own = _texts(path, f"variants.{variant}.set", spec.get("set"))
            experiment = load(
                str(content.get("preset", "demo")),
                cluster=cluster,
                overrides=[*common, *own, *(overrides or [])],
                seed=int(seed),
            )
            method = str(spec.get("method", variant))
            children.append(Child(method, str(variant), int(seed), experiment))
    children.sort(key=lambda c: c.experiment.iterations > 0)  # baselines first: they are quick
    best = content.get("best")
    try:
        rule = Best(**best) if isinstance(best, dict) else None
    except TypeError:
        raise ConfigError(f"study {path.name}: 'best' takes metric, objectives and mode") from None
    if rule is not None:
        _check_rule(path, rule, children)
    return Study(path.stem, str(content.get("description", "")), tuple(children), rule)


def _check_rule(path: Path, rule: Best, children: list[Child]) -> None:
    """What decides must be measured by every run."""
    for child in children:
        e = child.experiment.evaluate
        if rule.objectives not in e.objectives or (rule.mode == "sampled" and not e.sampled):
            raise ConfigError(
                f"study {path.name}: 'best' asks for {rule.mode} evaluations at {rule.objectives} "
                f"objectives, but {child.name} measures evaluate.objectives = "
                f"{list(e.objectives)}, evaluate.sampled = {e.sampled}; correct one of them"
            )


def _variant(path: Path, name: str, spec: object) -> dict[str, Any]:
    spec = {} if spec is None else spec  # a variant may be its name alone
    if not isinstance(spec, dict) or set(spec) - VARIANT_KEYS:
        raise ConfigError(
            f"study {path.name}: variants.{name} takes {', '.join(sorted(VARIANT_KEYS))}, "
            f"as in '{name}: {{method: NAME, set: [section.setting=value]}}'"
        )
    _seeds(path, f"variants.{name}.seeds", spec.get("seeds", []))
    return spec


def _seeds(path: Path, key: str, value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(v) is int for v in value):
        raise ConfigError(f"study {path.name}: {key!r} must be a list of whole numbers")
    return value


def _texts(path: Path, key: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"study {path.name}: {key!r} must be a list of 'section.setting=value'")
    return list(value)
