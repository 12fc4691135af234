"""Sweeps: one preset at many points of a space of settings, each measured over several seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from conf.load import CONF, NOT_HASHED, flatten, load, setting_type
from conf.study_file import check_seeds
from conf.sweep_file import METRIC, Method, SweepFile, check_free, read_sweep
from conf.text import ConfigError, read_mapping
from mempo.config import Experiment
from mempo.config.space import Dimension, shown_point, written

Point = Mapping[str, object]  # setting -> value, one of each dimension


@dataclass(frozen=True)
class Sweep:
    """A search: where, how, for how long, and what is best.

    `settings` are the overrides of every trial, those of the call last. A trial's value is the
    mean of `metric` over `seeds`; more is better.
    """

    name: str
    description: str
    preset: str
    cluster: str
    settings: tuple[str, ...]
    space: tuple[Dimension, ...]
    method: Method
    trials: int
    seeds: tuple[int, ...]
    metric: str
    prune: bool
    experiments: tuple[Experiment, ...]  # one at each end of each dimension, of the first seed

    @property
    def first(self) -> Experiment:
        """The first seed's run at the lower end of every dimension."""
        return self.experiments[0]

    @property
    def parallel(self) -> int:
        """Trials at once."""
        return self.first.cluster.parallel

    @property
    def grid(self) -> tuple[dict[str, object], ...]:
        """Every point of a grid, the last dimension fastest; empty for the other methods."""
        if self.method != "grid":
            return ()
        names = [dimension.setting for dimension in self.space]
        every = itertools.product(*(dimension.values for dimension in self.space))
        return tuple(dict(zip(names, values, strict=True)) for values in every)

    def experiment(self, point: Point, seed: int) -> Experiment:
        """What a trial at `point` runs with this seed.

        Raises:
            ConfigError: its settings do not go together.
        """
        overrides = [*self.settings, *(_override(name, value) for name, value in point.items())]
        return load(self.preset, cluster=self.cluster, overrides=overrides, seed=seed)


def sweeps() -> dict[str, str]:
    """Every sweep that ships, by name, with its description."""
    return {
        path.stem: str(read_mapping(path).get("description", ""))
        for path in sorted((CONF / "sweep").glob("*.yaml"))
    }


def load_sweep(
    name: str,
    *,
    seeds: list[int] | None = None,
    cluster: str = "local",
    overrides: Sequence[str] = (),
) -> Sweep:
    """Read `conf/sweep/<name>.yaml`, or the file `name`.

    A sweep is `preset`, common settings `set: [a.b=c]`, a `space` (setting -> list of choices, or
    a range `{low, high}` with `log: true` or `step`), a `method` (grid, random, tpe), `trials`
    (not of a grid), the `seeds` of each trial, `metric` (more is better), `prune`, and `parallel`,
    the trials at once. `seeds` takes the place of the file's; `overrides` win over `set`. Every
    choice and both bounds of a range, and all points of a grid, are checked. Raises ConfigError in
    one line.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else CONF / "sweep" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sweeps())
        if path == Path(name):
            raise ConfigError(f"there is no sweep file {name}; correct the path, or name {known}")
        raise ConfigError(f"unknown sweep {name!r}; there are: {known}; or give a YAML file")
    file = read_sweep(path)
    check_free("--set", list(overrides), {dimension.setting for dimension in file.space})
    settings = (*file.settings, f"cluster.parallel={file.parallel}", *overrides)
    wanted = file.seeds if seeds is None else check_seeds("--seeds", seeds)
    found = Sweep(
        path.stem,
        file.description,
        file.preset,
        cluster,
        settings,
        file.space,
        file.method,
        file.trials,
        wanted,
        file.metric,
        file.prune,
        (),
    )
    experiments = _ends(file, found, wanted[0])
    for experiment in experiments:
        _check_measured(file, experiment)
    return replace(found, experiments=tuple(experiments))


def best_yaml(experiment: Experiment, preset: str, origin: str) -> str:
    """A preset's file that means `experiment`, where it runs and is recorded aside.

    It extends `preset` and names what differs from it; `origin` is its first line, a comment.
    """
    if preset.endswith((".yaml", ".yml")):
        preset = str(Path(preset).absolute())  # it is read from another folder
    before, wanted = flatten(load(preset)), flatten(experiment)
    lines = [f"# {' '.join(origin.split())}", f"extends: {_yaml(preset)}"]
    sections: dict[str, list[str]] = {"": [f"seed: {experiment.seed}"]}
    for name, value in wanted.items():
        section, _, setting = name.rpartition(".")
        if value == before[name] or name.partition(".")[0] in (*NOT_HASHED, "seed"):
            continue
        sections.setdefault(section, []).append(f"{setting}: {_yaml(value)}")
    lines += sections.pop("")
    for section, settings in sections.items():
        lines += [f"{section}:", *(f"  {line}" for line in settings)]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    """A value on one line; text in quotes, so that it stays text in every YAML."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=float("inf")).strip()
    return written(value)


def _override(setting: str, value: object) -> str:
    """A value as `load` takes it; text of a setting that is no text by itself needs quotes."""
    quoted = isinstance(value, str) and setting_type(setting) is not str
    return f"{setting}={_yaml(value) if quoted else written(value)}"


def _ends(file: SweepFile, sweep: Sweep, seed: int) -> list[Experiment]:
    """The configurations at the ends of the space, one dimension after the other; all of a grid."""
    lower = {dimension.setting: dimension.ends[0] for dimension in file.space}
    points = [lower] + [
        lower | {dimension.setting: value}
        for dimension in file.space
        for value in dimension.ends[1:]
    ]
    made = partial(_made, file, sweep, seed)
    found = [made(point) for point in points]
    for i, point in enumerate(points):
        if found[i] in found[:i]:
            twin = points[found.index(found[i])]
            raise ConfigError(
                f"sweep {file.path.name}: 'space' has {shown_point(twin)} and "
                f"{shown_point(point)}, which mean the same; keep one"
            )
    for point in sweep.grid:
        made(point)
    return found


def _made(file: SweepFile, sweep: Sweep, seed: int, point: Point) -> Experiment:
    try:
        return sweep.experiment(point, seed)
    except ConfigError as error:
        raise ConfigError(f"sweep {file.path.name}, at {shown_point(point)}: {error}") from None


def _check_measured(file: SweepFile, experiment: Experiment) -> None:
    """What decides must be measured by every trial, and during training where it prunes."""
    e, where = experiment.evaluate, f"sweep {file.path.name}"
    match = METRIC.fullmatch(file.metric)
    assert match is not None
    if int(match[2]) not in e.objectives or (match[1] == "eval_sampled" and not e.sampled):
        raise ConfigError(
            f"{where}: 'metric' is {file.metric}, but its trials measure evaluate.objectives = "
            f"{list(e.objectives)}, evaluate.sampled = {e.sampled}; correct one of them"
        )
    if file.prune and not 0 < e.every < experiment.iterations:
        raise ConfigError(
            f"{where}: 'prune' needs evaluations during training, but evaluate.every = {e.every} "
            f"with iterations = {experiment.iterations}; set evaluate.every to a number of "
            "iterations below that, or drop 'prune'"
        )
