"""The options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from conf.text import ConfigError

Preset = Annotated[
    str,
    typer.Option("--preset", "-p", metavar="NAME", help="A preset, by name, or a YAML file."),
]
ClusterFile = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="NAME", help="Where it runs: a cluster, by name, or a YAML file."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change one setting; may be given many times."),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="Seed of the run; every random draw follows from it."),
]

# Of commands that start many runs.
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="N,N", help="Seeds in place of the file's.")
]
Parallel = Annotated[
    int | None, typer.Option("--parallel", metavar="N", min=1, help="How many go on side by side.")
]
ResumeMany = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with this MLflow run of it, or with 'auto' the newest one that is not done.",
    ),
]


def integers(text: str) -> list[int] | None:
    """'101,102' -> [101, 102]; '' -> None."""
    try:
        return [int(part) for part in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(f"--seeds '{text}': must be whole numbers, such as 101,102") from None
