"""`mempo ablate` and `report`: many runs, compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from conf.load import load
from conf.study import load_study
from conf.text import ConfigError
from flows.listing import study_table
from flows.options import ClusterFile, Overrides, Parallel, ResumeMany, Seeds, integers
from flows.shell import command, complain, stay_offline


def ablate(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study, by name, or a YAML file.")
    ],
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seeds: Seeds = None,
    parallel: Parallel = None,
    resume: ResumeMany = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the runs of the study and start nothing.")
    ] = False,
) -> None:
    """Run a study, and compare its variants on one page.

    Variants start from one policy with the same seeds and questions, so they are compared in
    pairs. A run that fails does not stop the others; the exit status is then 1. `--set` changes
    every variant and wins over the study.

    \b
      mempo ablate demo
      mempo ablate demo --list
      mempo ablate demo --seeds 101,102 --parallel 2 --set iterations=40

    A study that was cut off, or of which runs failed, goes on with the same options: runs that are
    finished are kept, the others run anew.

    \b
      mempo ablate demo --seeds 101,102 --resume auto

    A study file of your own, `mempo ablate mine.yaml`:

    \b
      description: Does the memory advantage help at a higher learning rate?
      preset: demo
      seeds: [101, 102]
      set: [learner.lr=6.0e-4, cluster.parallel=2]      # every variant
      starts: {a: models/a, b: models/b}                # optional: several cold starts
      variants:
        start: {method: SFT, set: [iterations=0]}       # method: its name in tables
        grpo: {method: GRPO, set: [memory.weight=0]}
        mempo: {method: MemPO}                          # seeds: [n] would be its own
        all: {from: mempo, set: [iterations=0, agent.history=all]}   # from its last checkpoint
      best: {metric: em, objectives: 4, mode: sampled}  # optional: of several variants of a method
      baseline: GRPO                                    # optional: what differences are to
    """
    with command():
        changes = list(overrides or ())
        if parallel is not None:
            changes.append(f"cluster.parallel={parallel}")
        plan = load_study(study, seeds=integers(seeds or ""), cluster=cluster, overrides=changes)
        if resume == "":
            raise ConfigError("--resume: empty; give a run id or 'auto'")
        if seeds == "":
            raise ConfigError("--seeds: empty; give whole numbers, such as 101,102")
        if show and resume:
            raise ConfigError("--list starts nothing, so it goes without --resume; drop one")
        if show:
            print(study_table(plan))
            return
        from flows import run

        experiments = [child.experiment for child in plan.children]
        stay_offline(*(m for e in experiments for m in (e.policy.model, e.agent.embedding_model)))
        result = run.ablate(plan, resume or "", _typed(study, cluster, changes, seeds or ""))
        if result.failed:
            complain(f"{len(result.failed)} of {len(plan.children)} runs failed")
            raise typer.Exit(1)


def reproduce(
    run: Annotated[str, typer.Argument(metavar="RUN", help="MLflow id of a finished run.")],
    overrides: Overrides = None,
) -> None:
    """Run a finished run again, and compare every metric.

    Says first which commit, data, models, packages and configuration it had, and what of that is
    different here; nothing is checked out. `--set` is for section tracking: where the run is
    recorded. The exit status is 1 where a metric comes out different.

    \b
      mempo reproduce 0a1b...
    """
    with command():
        if foreign := [o for o in overrides or () if not o.startswith("tracking.")]:
            raise ConfigError(
                f"--set {foreign[0]}: a run is reproduced with its own settings; only section "
                "tracking may be set"
            )
        experiment = load(overrides=overrides or ())
        from flows import run as runs

        if lines := runs.reproduce(run, experiment.tracking):
            complain(f"{len(lines)} metrics came out different")
            raise typer.Exit(1)


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="MLflow run ids; a study's is its runs.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where the page goes; default: MEMPO_HOME/reports. An earlier one is replaced.",
        ),
    ] = None,
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="FILE#SECTION",
            help="Also write the table into a Markdown file, between `<!-- results:SECTION -->` "
            "and `<!-- end:SECTION -->`.",
        ),
    ] = "",
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="METHOD",
            help="The method that differences are to; default: the study's own, else GRPO.",
        ),
    ] = None,
) -> None:
    """Compare finished runs, from MLflow alone, on one page.

    \b
      mempo report 0a1b...                                the runs of one study, or one run
      mempo report 0a1b... 2c3d... --out compare          any runs, side by side
      mempo report 0a1b... --set tracking.uri=http://host:5000
    """
    with command():
        experiment = load(overrides=overrides or ())
        if baseline == "":
            raise ConfigError("--baseline: empty; give the name of a method")
        from mlflow.exceptions import MlflowException

        from flows import run
        from tasks import store

        for run_id in runs:
            store.run_folder(run_id)  # they name the folder of the page
        folder = out or store.home() / "reports" / "-".join(run_id[:8] for run_id in runs)
        try:
            run.report(runs, folder, experiment, into, baseline or "")
        except MlflowException as error:
            raise ConfigError(
                f"report: {error}; `mempo up` shows the runs and their ids"
            ) from error


def _typed(study: str, cluster: str, changes: list[str], seeds: str) -> str:
    """The command that runs a study with these options."""
    options = ["--cluster", cluster] if cluster != "local" else []
    options += [word for change in changes for word in ("--set", change)]
    options += ["--seeds", seeds] if seeds else []
    return shlex.join(["mempo", "ablate", study, *options])
