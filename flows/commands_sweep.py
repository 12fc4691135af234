"""`mempo sweep`: the settings that do best."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from conf.sweep import load_sweep
from conf.text import ConfigError
from flows.listing import sweep_table
from flows.options import ClusterFile, Overrides, Parallel, ResumeMany, Seeds, integers
from flows.shell import command, complain, stay_offline


def sweep(
    name: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep, by name, or a YAML file.")],
    cluster: ClusterFile = "local",
    overrides: Overrides = None,
    seeds: Seeds = None,
    parallel: Parallel = None,
    resume: ResumeMany = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show what is searched and start nothing.")
    ] = False,
) -> None:
    """Search for the settings that do best, and write them as a preset.

    Each trial is a point of the space, trained with every seed; its value is the mean of the
    metric. It ends with a page (all trials, which settings matter, the winner against the
    runner-up) and the file best.yaml for `mempo train --preset`. A trial that fails, or whose value
    is no finite number, never wins and does not stop the others; the exit status is then 1. The
    winner is chosen on the very questions that it is reported on: to claim something of it, train
    it again with seeds that the sweep has not seen.

    \b
      mempo sweep demo
      mempo sweep demo --list
      mempo sweep demo --seeds 101,102 --parallel 2 --set iterations=12

    A sweep that was cut off goes on with the same options: trials that are over are kept, failed
    ones too, those that had begun go on from their last checkpoints. With one trial at a time it
    asks for the very points of a sweep that was left alone.

    \b
      mempo sweep demo --seeds 101,102 --resume auto

    A sweep file of your own, `mempo sweep mine.yaml`:

    \b
      description: Which learning rate and credit suit my questions?
      preset: wiki
      seeds: [1, 2]                                # of each trial; its value is their mean
      set: [evaluate.every=2, "evaluate.objectives=[2]"]        # every trial
      method: tpe                                  # grid, random, or tpe (learns from trials)
      trials: 20                                   # not of a grid: that has all its points
      parallel: 1                                  # trials at once
      metric: eval_sampled/n2/f1                   # more is better; or eval/nK/em, format, p_answer
      prune: true                                  # stop trials below the median (of seed 1)
      space:
        learner.lr: {low: 1.0e-6, high: 1.0e-4, log: true}      # a range
        learner.minibatches: {low: 1, high: 4}                  # whole numbers; step: 1 for a grid
        memory.reward: [contrast, posterior]                    # choices
    """
    with command():
        changes = list(overrides or ())
        if parallel is not None:
            changes.append(f"cluster.parallel={parallel}")
        if resume == "":
            raise ConfigError("--resume: empty; give a run id or 'auto'")
        if seeds == "":
            raise ConfigError("--seeds: empty; give whole numbers, such as 101,102")
        plan = load_sweep(name, seeds=integers(seeds or ""), cluster=cluster, overrides=changes)
        if show and resume:
            raise ConfigError("--list starts nothing, so it goes without --resume; drop one")
        if show:
            print(sweep_table(plan))
            return
        from flows import run

        models = (m for e in plan.experiments for m in (e.policy.model, e.agent.embedding_model))
        stay_offline(*models)
        result = run.sweep(plan, resume or "", _typed(name, cluster, changes, seeds or ""))
        if result.failed:
            complain(f"{len(result.failed)} of {result.trials} trials failed")
            raise typer.Exit(1)


def _typed(name: str, cluster: str, changes: list[str], seeds: str) -> str:
    """The command that runs a sweep with these options."""
    options = ["--cluster", cluster] if cluster != "local" else []
    options += [word for change in changes for word in ("--set", change)]
    options += ["--seeds", seeds] if seeds else []
    return shlex.join(["mempo", "sweep", name, *options])
