"""What `--help` lists beside the options: the names that ship, and every setting."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from conf.load import clusters, presets, setting_names
from conf.study import studies

EXIT_STATUS = (
    ("0", "the work was done"),
    ("1", "it failed, or some runs of a study did; MEMPO_DEBUG=1 shows the traceback"),
    ("2", "refused before it began: a setting, an address or a file is wrong"),
    ("130", "stopped by Ctrl-C; the run is closed as KILLED"),
)


class Commands(TyperGroup):
    """`mempo --help`: the commands, then the names that they take."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _section(formatter, "Presets (--preset NAME)", presets())
        _section(formatter, "Clusters (--cluster NAME)", clusters())
        _section(formatter, "Studies (mempo ablate NAME)", studies())
        _section(formatter, "Exit status", dict(EXIT_STATUS))


class Command(TyperCommand):
    """Help of a command that takes a configuration: its names, and the settings of `--set`."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.name == "ablate":
            _section(formatter, "Studies", studies())
        else:
            _section(formatter, "Presets", presets())
        _section(formatter, "Clusters", clusters())
        _section(formatter, "Settings (--set SECTION.NAME=VALUE)", _settings())


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
