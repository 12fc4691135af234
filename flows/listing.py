"""What `--help` lists beside the options: the names that ship, and every setting."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from conf.load import clusters, flatten, presets, setting_names
from conf.study import Study, differing, studies
from conf.study_file import MODEL
from conf.sweep import Sweep, sweeps
from mempo.config.space import Dimension, written

EXIT_STATUS = (
    ("0", "the work was done"),
    ("1", "it failed, or some runs of a study did; MEMPO_DEBUG=1 shows the traceback"),
    ("2", "refused before it began: a setting, an address or a file is wrong"),
    ("130", "stopped by Ctrl-C or SIGTERM; the run is closed as KILLED"),
)


class Commands(TyperGroup):
    """`mempo --help`: the commands, then the names that they take."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _section(formatter, "Presets (--preset NAME)", presets())
        _section(formatter, "Clusters (--cluster NAME)", clusters())
        _section(formatter, "Studies (mempo ablate NAME)", studies())
        _section(formatter, "Sweeps (mempo sweep NAME)", sweeps())
        _section(formatter, "Exit status", dict(EXIT_STATUS))


class Command(TyperCommand):
    """Help of a command that takes a configuration: its names, and the settings of `--set`."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.name == "ablate":
            _section(formatter, "Studies", studies())
        elif self.name == "sweep":
            _section(formatter, "Sweeps", sweeps())
        else:
            _section(formatter, "Presets", presets())
        _section(formatter, "Clusters", clusters())
        _section(formatter, "Settings (--set SECTION.NAME=VALUE)", _settings())


def study_table(study: Study) -> str:
    """The runs of a study in plain text: name, method, start, and the settings that differ."""
    varying = differing(study)
    rows = [("run", "method", "starts from", "what differs")]
    for child in study.children:
        flat = flatten(child.experiment)
        rows.append(
            (
                child.name,
                child.method,
                f"the end of {child.source}" if child.source else str(flat[MODEL]),
                "  ".join(f"{name}={written(flat[name])}" for name in varying),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    parallel = study.children[0].experiment.cluster.parallel
    count = f"{len(study.children)} runs, {parallel} at a time"
    return "\n".join([f"{study.name}: {study.description}", count, "", *lines])


def sweep_table(sweep: Sweep) -> str:
    """What a sweep searches in plain text; the points of a grid one by one."""
    count = f"{sweep.trials} trials ({sweep.method}), {sweep.parallel} at a time"
    seeds = f"seeds {', '.join(map(str, sweep.seeds))} of each, and the mean of {sweep.metric}"
    width = max(len(dimension.setting) for dimension in sweep.space)
    space = [f"{d.setting.ljust(width)}  {_values(d)}" for d in sweep.space]
    points = [
        "  ".join([f"trial {i}", *(f"{name}={written(value)}" for name, value in point.items())])
        for i, point in enumerate(sweep.grid)
    ]
    head = [f"{sweep.name}: {sweep.description}", count, seeds, "", *space]
    return "\n".join([*head, *(["", *points] if points else [])])


def _values(dimension: Dimension) -> str:
    if dimension.choices:
        return ", ".join(map(written, dimension.choices))
    low, high = map(written, dimension.ends)
    how = ", logarithmic" if dimension.log else ""
    how += f", in steps of {dimension.step:g}" if dimension.step else ""
    return f"{low} to {high}{how}"


def _settings() -> dict[str, str]:
    """Section -> its settings; those without a section stand first."""
    listed: dict[str, list[str]] = {}
    for dotted in setting_names():
        section, _, name = dotted.rpartition(".")
        listed.setdefault(section, []).append(name)
    return {section or "(none)": ", ".join(names) for section, names in listed.items()}


def _section(formatter: Any, title: str, rows: dict[str, str]) -> None:
    with formatter.section(title):
        formatter.write_dl(list(rows.items()))
