"""`mempo bench`: how fast this house is, as ratios against peers that do the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from conf.text import ConfigError
from flows.shell import command, stay_offline


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help="score, history, train, growth, rollout, grpo, overhead; by default all.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="FOLDER",
            help="A model folder, 'random' (SmolLM2-135M's shape) or 'tiny' (a look at the "
            "plumbing); by default models/smollm2 where it is, else random.",
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="How often each arm has its turn.")
    ] = 3,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write what was found there, and a picture of it as FILE.png.",
        ),
    ] = None,
) -> None:
    """Measure speed as ratios within one run: arms that do the same work, in turns.

    On two cores all parts take about an hour; nothing else should run meanwhile, and the load is
    told. docs/speed.md says what each line means.

    \b
      mempo bench                           all of it
      mempo bench score train --json FILE   two parts, and their numbers in a file
      mempo bench --model tiny              minutes, only to see that it runs
    """
    with command():
        from flows.bench import PARTS, measure_all, table, write

        if unknown := [part for part in parts or () if part not in PARTS]:
            raise ConfigError(f"bench: unknown part '{unknown[0]}'; there are: {', '.join(PARTS)}")
        if json_file and not json_file.parent.is_dir():
            raise ConfigError(f"--json: there is no folder {json_file.parent}; make it first")
        if model not in ("", "random", "tiny") and not (Path(model) / "config.json").is_file():
            raise ConfigError(
                f"--model {model}: there is no model folder; give one, 'random' or 'tiny'"
            )
        if json_file and (json_file.is_dir() or json_file.suffix == ".png"):
            raise ConfigError(
                f"--json {json_file}: give a file for the numbers; its picture is named after it"
            )
        if json_file:
            json_file.parent.mkdir(parents=True, exist_ok=True)
        stay_offline(model if model not in ("random", "tiny") else "")

        def keep(found: dict[str, Any]) -> None:
            if json_file:
                write(found, json_file)

        found = measure_all(parts or list(PARTS), model, rounds, keep)
        print(table(found))
        if failed := found["failed"]:
            raise RuntimeError(f"bench: {', '.join(failed)} failed; see the lines above the table")
