"""`mempo train`, `sft`, `evaluate` and `export`: one run, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.load import load
from conf.text import ConfigError
from flows.options import ClusterFile, Overrides, Preset, Seed
from flows.shell import command, stay_offline

if TYPE_CHECKING:
    from flows.recording import RunResult
    from mempo.config import Experiment


def train(
    preset: Preset = "demo",
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seed: Seed = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with a run that was cut off, by its id and with its settings; 'auto': with "
            "the newest of the settings given.",
        ),
    ] = None,
) -> None:
    """Train a policy, evaluate it, and write its report.

    \b
      mempo train                                        the demo's MemPO, two cores, minutes
      mempo train --seed 7 --set memory.weight=0         the same without memory advantage: GRPO
      mempo train -p wiki --set iterations=10            real questions, after `mempo fetch smollm2`
      mempo train --cluster ray --set cluster.address=head:6379
      mempo train --resume RUN                           as if it had not been cut off
    """
    with command():
        if resume == "":
            raise ConfigError("--resume: empty; give a run id or 'auto'")
        from flows import run

        if resume and resume != "auto":
            experiment = _settings_of(resume, preset, cluster, overrides or (), seed)
        else:
            experiment = load(preset, cluster=cluster, overrides=overrides or (), seed=seed)
        stay_offline(experiment.policy.model, experiment.agent.embedding_model)
        _show(run.train(experiment, resume or ""))


def _settings_of(
    run_id: str, preset: str, cluster: str, overrides: Sequence[str], seed: int | None
) -> Experiment:
    """What a run was started with; what is given beside it must not contradict."""
    from flows.resuming import settings_of

    experiment = settings_of(run_id, cluster=cluster, overrides=overrides, seed=seed)
    if preset not in ("demo", experiment.preset):
        raise ConfigError(
            f"--resume {run_id}: that run is of preset '{experiment.preset}', not '{preset}'; "
            "leave --preset out, its settings are the run's"
        )
    return experiment


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


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint's folder, or the id of a run: its best by checkpoint.best, or last.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model goes.")],
) -> None:
    """Copy a checkpoint as a model folder that transformers and vLLM load.

    An earlier export in FOLDER is replaced; a folder with anything else in it is refused.

    \b
      mempo export RUN models/mine
      mempo evaluate --set policy.model=models/mine --set evaluate.questions=300
    """
    with command():
        from flows.exporting import check_target, find_checkpoint
        from flows.exporting import export as copy

        source = find_checkpoint(checkpoint)
        check_target(folder, "FOLDER")
        copy(source, folder)
        print(f"{source} was copied to {folder}, without the optimiser's state")


def _show(result: RunResult) -> None:
    print(f"Run: {result.run_id} in {result.folder}")
    if result.checkpoint:
        print(f"Checkpoint: {result.checkpoint}")
