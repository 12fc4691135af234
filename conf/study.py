"""Studies: variants x starts x seeds on the same questions, so that comparisons are paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conf.load import CONF, flatten, load
from conf.study_file import MODEL, Best, StudyFile, Variant, check_seeds, read_study, sets_model
from conf.text import ConfigError, read_mapping
from mempo.config import Experiment


@dataclass(frozen=True)
class Child:
    """One run of a study.

    `source` names the child whose last checkpoint this one starts from; until that is there,
    `experiment.policy.model` is what the source itself begins with.
    """

    method: str  # how tables and pictures call it
    variant: str
    seed: int
    experiment: Experiment
    start: str = ""  # name of the cold start, where the study has several
    source: str = ""

    @property
    def name(self) -> str:
        start = f" start {self.start}" if self.start else ""
        return f"{self.variant}{start} seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """A comparison: what it runs, and what it is for.

    A child stands after the one that it starts from, and those that do not train come first.
    """

    name: str
    description: str
    children: tuple[Child, ...]
    best: Best | None = None
    baseline: str = ""  # the method that differences are to; empty: GRPO

    @property
    def checked(self) -> list[Experiment]:
        """One experiment for each that needs checks of its own: seeds need none."""
        return list({(c.variant, c.start): c.experiment for c in self.children}.values())


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
    `method` (the name in tables), `set`, and two keys of its own. `from: VARIANT` starts it at
    the last checkpoint of that variant with the same start and seed. `seeds: [n]` runs it with
    these seeds only; without it a variant runs with the seeds of the study (of the variant that
    it starts from), but with the first of them alone where it does not train, for then the seed
    decides nothing. `starts: {name: MODEL}` runs all of it from several cold starts. Of several
    variants of one method the best stands for it; `best` names the metric, objectives and mode
    that decide. `baseline: METHOD` is the one that the report compares with (GRPO without it).
    `overrides` win over all settings. Raises ConfigError in one line.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else CONF / "study" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(studies())
        if path == Path(name):
            raise ConfigError(f"there is no study file {name}; correct the path, or name {known}")
        raise ConfigError(f"unknown study {name!r}; there are: {known}; or give a YAML file")
    file = read_study(path)
    if file.starts and sets_model(overrides or ()):
        raise ConfigError(f"study {path.name} has 'starts', so --set {MODEL} is no use; drop it")
    wanted = file.seeds if seeds is None else check_seeds("--seeds", seeds)
    children: list[Child] = []
    for variant in file.variants:
        for start, model in (file.starts or {"": ""}).items():
            settings = [*file.settings, *([f"{MODEL}={model}"] if model else ())]
            settings += [*variant.settings, *(overrides or ())]
            read = partial(load, file.preset, cluster=cluster, overrides=settings)
            sources = {
                c.seed: c for c in children if (c.variant, c.start) == (variant.source, start)
            }
            for seed in _seeds(file, variant, wanted, sources, read(seed=wanted[0])):
                own, source = read(seed=seed), sources.get(seed)
                if source is not None:
                    begin = source.experiment.policy.model
                    policy = own.policy.model_copy(update={"model": begin})
                    own = own.model_copy(update={"policy": policy})
                after = source.name if source else ""
                children.append(Child(variant.method, variant.name, seed, own, start, after))
    depth = {variant.name: variant.depth for variant in file.variants}
    # Those that do not train are quick, and what starts from another run has to wait for it.
    children.sort(key=lambda c: (depth[c.variant], c.experiment.iterations > 0))
    if file.best is not None:
        _check_rule(path, file.best, children)
    return Study(path.stem, file.description, tuple(children), file.best, file.baseline)


def differing(study: Study) -> list[str]:
    """Settings, by dotted name, that are not the same in all runs; seed and start aside."""
    flat = [flatten(child.experiment) for child in study.children]
    return [
        name
        for name, value in flat[0].items()
        if name not in ("seed", MODEL) and any(other[name] != value for other in flat)
    ]


def _seeds(
    file: StudyFile,
    variant: Variant,
    wanted: Sequence[int],
    sources: dict[int, Child],
    experiment: Experiment,
) -> Sequence[int]:
    """The seeds of a variant; `sources` are the children that it may start from, by seed."""
    if not variant.source:
        # A fresh 'tiny' policy is drawn from the seed: then even what does not train needs each.
        once = experiment.iterations == 0 and experiment.policy.model != "tiny"
        return variant.seeds or (wanted[:1] if once else wanted)
    where = f"study {file.path.name}: 'variants.{variant.name}.from'"
    if any(child.experiment.iterations == 0 for child in sources.values()):
        raise ConfigError(
            f"{where}: {variant.source} trains nothing (iterations = 0), so it leaves no "
            "checkpoint; start from a variant that trains"
        )
    missing = [seed for seed in variant.seeds if seed not in sources]
    if missing:
        raise ConfigError(
            f"{where}: {variant.source} has no seed {missing[0]}, only "
            f"{', '.join(map(str, sources))}; correct the seeds of one of them"
        )
    return variant.seeds or tuple(sources)


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
