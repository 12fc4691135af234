"""Run a flow with everything it needs around it: checks, one Prefect server, one Ray.

These are the functions behind the `mempo` command; a deployment that Prefect starts calls the
flows themselves.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from flows.connecting import services
from flows.progress import say
from flows.shell import stay_offline
from mempo.config import Experiment, Tracking

if TYPE_CHECKING:
    from conf.study import Study
    from conf.sweep import Sweep
    from flows.ablate import AblationResult
    from flows.recording import RunResult
    from flows.sweep import SweepResult


def train(experiment: Experiment, resume: str = "") -> RunResult:
    """Train and evaluate, and write the run's report.

    `resume`: id of the run to go on with, or 'auto' for the newest of this configuration that is
    not done.
    """
    if resume:
        from flows.resuming import run_to_resume
        from tasks.tracking import Tracker

        tracker = Tracker(experiment.tracking.uri, experiment.tracking.experiment)
        resume = run_to_resume(tracker, experiment, resume)
        say(f"going on with run {resume}")
    with services([experiment]):
        from flows.train import train as flow

        result = flow(experiment, resume=resume)
    _show(result)
    return result


def evaluate(experiment: Experiment, checkpoint: str | None = None) -> RunResult:
    """Evaluate `policy.model`, or a checkpoint folder in its place, and write the report."""
    update: dict[str, object] = {"iterations": 0}
    if checkpoint:
        update["policy"] = experiment.policy.model_copy(update={"model": checkpoint})
    experiment = experiment.model_copy(update=update)
    with services([experiment], "evaluate"):
        from flows.evaluate import evaluate as flow

        result = flow(experiment)
    _show(result)
    return result


def sft(experiment: Experiment, out: Path | None = None) -> RunResult:
    """The cold start; `out` as in the flow."""
    with services([experiment], "sft"):
        from flows.sft import sft as flow

        result = flow(experiment, out=str(out or ""))
    print(f"Report: {result.report}")
    return result


def ablate(study: Study, resume: str = "", command: str = "") -> AblationResult:
    """Run a study and print its table and the path of its page.

    `resume`: id of the study's run to go on with, or 'auto' for the newest that is not done;
    `command`: what was typed, for the line that says how to go on.
    """
    from flows.plan import run_to_resume
    from tasks.tracking import Tracker

    tracking = study.children[0].experiment.tracking
    if resume:
        resume = run_to_resume(Tracker(tracking.uri, tracking.experiment), study, resume)
        say(f"going on with run {resume}")
    with services(study.checked):
        from flows.ablate import ablate as flow

        result = flow(study, resume, command)
    print(result.table)
    print(f"Report: {result.report}")
    for name, reason in result.failed.items():
        print(f"FAILED  {name}: {reason}")
    return result


def sweep(plan: Sweep, resume: str = "", command: str = "") -> SweepResult:
    """Run a sweep and print its table, its page and the preset that it found.

    `resume` and `command` as in `ablate`.
    """
    from flows.sweep_plan import run_to_resume
    from tasks.tracking import Tracker

    tracking = plan.first.tracking
    if resume:
        resume = run_to_resume(Tracker(tracking.uri, tracking.experiment), plan, resume)
        say(f"going on with run {resume}")
    with services(plan.experiments):
        from flows.sweep import sweep as flow

        result = flow(plan, resume, command)
    print(result.table)
    print(f"Report: {result.report}")
    for name, reason in result.failed.items():
        print(f"FAILED  {name}: {reason}")
    print(f"Best:   {result.best}")
    print(f"        mempo train --preset {shlex.quote(result.best)}")
    return result


def reproduce(run_id: str, tracking: Tracking) -> list[str]:
    """Run a finished run again, and compare; the metrics that differ, a line each."""
    from flows.reproducing import differences, origin_of
    from tasks.tracking import Tracker

    tracker = Tracker(tracking.uri, tracking.experiment)
    origin = origin_of(tracker, run_id)
    print("\n".join(origin.facts))
    for line in origin.changed:
        print(f"CHANGED  {line}")
    experiment = origin.experiment.model_copy(update={"tracking": tracking})
    stay_offline(experiment.policy.model, experiment.agent.embedding_model)
    with services([experiment], origin.kind):
        from flows.evaluate import evaluate
        from flows.sft import sft
        from flows.train import train

        flow = {"train": train, "sft": sft, "evaluate": evaluate}[origin.kind]
        again = flow(experiment, name=f"again {run_id[:8]}")
    tracker.set_tags(again.run_id, {"mempo.reproduces": run_id})
    points, lines = differences(tracker.curves([run_id, again.run_id]), run_id, again.run_id)
    print(f"{points} points of {run_id} compared with those of {again.run_id}, times aside:")
    print("\n".join(lines) or "all are equal, to the last bit")
    return lines


def report(
    run_ids: list[str], out: Path, experiment: Experiment, into: str = "", baseline: str = ""
) -> Path:
    """The page of finished runs, from MLflow alone; options as in `flows.report.report_runs`."""
    from flows.report import report_runs
    from tasks.tracking import Tracker

    tracker = Tracker(experiment.tracking.uri, experiment.tracking.experiment)
    page, table = report_runs(tracker, run_ids, out, into=into, baseline=baseline)
    print(table)
    print(f"Report: {page}")
    return page


def _show(result: RunResult) -> None:
    print(result.table)
    print(f"Report: {result.report}")
