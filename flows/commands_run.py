"""`mempo train`, `sft` and `evaluate`: one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.load import load
from conf.text import ConfigError
from flows.options import ClusterFile, Overrides, Preset, Seed
from flows.shell import command, stay_offline

if TYPE_CHECKING:
    from flows.recording import RunResult


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


def _show(result: RunResult) -> None:
    print(f"Run: {result.run_id} in {result.folder}")
    if result.checkpoint:
        print(f"Checkpoint: {result.checkpoint}")
