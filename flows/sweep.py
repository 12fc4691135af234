"""The `sweep` flow: trials of a search as child runs of one MLflow run, the best as a preset."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from prefect import flow

from conf.sweep import Sweep, best_yaml
from flows.connecting import connected
from flows.progress import say
from flows.recording import Record, recorded
from flows.report import report_runs
from flows.stopping import stoppable
from flows.sweep_plan import SWEEP, Trial, plan_of, plan_tags, ranked, trials_of
from flows.trials import run_trials
from mempo.config.space import shown_point
from tasks import stages

BEST = "best.yaml"  # in the run's folder, and its artifact
TAG_CHARACTERS = 5000  # MLflow refuses longer values, older servers at this length


@dataclass(frozen=True)
class SweepResult:
    """The sweep's run, its trials, the best one as a preset's file, and the page of all."""

    run_id: str
    trials: int
    failed: dict[str, str]  # reasons by trial
    best: str
    value: float  # of the best
    report: str
    table: str


@flow(
    name="sweep",
    flow_run_name="{plan.name}",
    task_runner=stages.ray_runner(),
    persist_result=False,
    validate_parameters=False,
)
def sweep(plan: Sweep, resume: str = "", command: str = "") -> SweepResult:
    """`run_sweep` as a flow of a command."""
    return run_sweep(plan, resume, command)


def run_sweep(plan: Sweep, resume: str = "", command: str = "") -> SweepResult:
    """Run the trials of a sweep, `cluster.parallel` of them side by side, and report the best.

    What is cut off can go on: trials that are over are kept, failed ones too, those that had begun
    go on where they were, and there are never more than `plan.trials`.

    Args:
        plan: what to search, and how.
        resume: id of the MLflow run that goes on; its plan is this one (`flows.sweep_plan`).
        command: how a person started this, for the line that says how to go on.

    Raises:
        RuntimeError: no trial was measured to its end.
    """
    with connected(plan.experiments):
        return stoppable(_recorded, plan, resume, command)


def _recorded(plan: Sweep, resume: str, command: str) -> SweepResult:
    from tasks.search import Search

    name, tags = plan.name, plan_tags(plan)
    with recorded(plan.first, "sweep", name=name, method=name, tags=tags, resume=resume) as record:
        if not resume:
            record.tracker.log_text(record.run_id, json.dumps(plan_of(plan)), SWEEP)
        search = Search(
            record.run_id,
            plan.space,
            method=plan.method,
            seed=plan.seeds[0],
            trials=plan.trials,
            parallel=plan.parallel,
            grid=plan.grid,
        )
        try:
            run_trials(plan, record, search)
            return _conclude(plan, record)
        except BaseException:
            again = f"{command or f'mempo sweep {plan.name}'} --resume {record.run_id}"
            say(f"the sweep is not done; to go on: {again}")
            raise


def _conclude(plan: Sweep, record: Record) -> SweepResult:
    tracker, run_id = record.tracker, record.run_id
    trials = trials_of(tracker, run_id)
    failed = {t.name: t.outcome.reason for t in trials if t.outcome.state == "failed"}
    reasons = [f"{name}: {reason}" for name, reason in failed.items()]
    tracker.set_tags(run_id, {"mempo.failed": "\n".join(reasons)[:TAG_CHARACTERS]})
    best = ranked(trials)
    if not best:
        told = f"; {reasons[0]}" if reasons else ""
        raise RuntimeError(f"none of the {len(trials)} trials was measured to its end{told}")
    file = _write_best(plan, record, best[0])
    tracker.set_tags(run_id, {"mempo.best_trial": str(best[0].number)})
    page, table = report_runs(tracker, [run_id], record.folder / "report")
    tracker.log_artifact(run_id, page.parent, "report")
    value = best[0].outcome.value
    return SweepResult(run_id, len(trials), failed, str(file), value, str(page), table)


def _write_best(plan: Sweep, record: Record, best: Trial) -> Path:
    origin = (
        f"{best.name} of the sweep {plan.name} (MLflow run {record.run_id}): "
        f"{shown_point(best.point)}; {plan.metric} {best.outcome.value:.4f}, the best of "
        f"{plan.trials}"
    )
    experiment = plan.experiment(best.point, plan.seeds[0])
    file = record.folder / BEST
    file.write_text(best_yaml(experiment, plan.preset, origin), encoding="utf-8")
    record.tracker.log_artifact(record.run_id, file)
    return file
