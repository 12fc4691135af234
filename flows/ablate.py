"""The `ablate` flow: the runs of a study as child runs of one MLflow run, then one report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf, nan
from statistics import fmean

from prefect import flow

from conf.study import Study
from flows.children import run_children
from flows.connecting import connected
from flows.plan import PLAN, plan_of, plan_tags
from flows.progress import say
from flows.recording import Record, RunResult, recorded
from flows.report import COMPARED, report_runs
from flows.stopping import stoppable
from tasks import stages
from tasks.records import RunInfo

TAG_CHARACTERS = 5000  # MLflow refuses longer values, older servers at this length


@dataclass(frozen=True)
class AblationResult:
    """The parent run, its children by name, the failures, and the page that compares them."""

    run_id: str
    children: dict[str, RunResult]
    failed: dict[str, str]
    report: str
    table: str


@flow(
    name="ablate",
    flow_run_name="{study.name}",
    task_runner=stages.ray_runner(),
    persist_result=False,
    validate_parameters=False,
)
def ablate(study: Study, resume: str = "", command: str = "") -> AblationResult:
    """`run_study` as a flow of a command."""
    return run_study(study, resume, command)


def run_study(study: Study, resume: str = "", command: str = "") -> AblationResult:
    """Run every child of a study; `cluster.parallel` of them side by side.

    A failed child is reported and the others go on; only if all fail the flow fails. What is cut
    off can go on: children that are FINISHED with the same configuration, and the same functions
    of one's own, are taken over.

    Args:
        study: what to run.
        resume: id of the MLflow run that goes on; its plan is this study's (`flows.plan`).
        command: how a person started this, for the line that says how to go on.
    """
    with connected(study.checked):
        return stoppable(_recorded, study, resume, command)


def _recorded(study: Study, resume: str, command: str) -> AblationResult:
    with recorded(
        study.children[0].experiment,
        "ablate",
        name=study.name,
        method=study.name,
        tags=plan_tags(study),
        resume=resume,
    ) as record:
        tracker, run_id = record.tracker, record.run_id
        if not resume:
            tracker.log_text(run_id, json.dumps(plan_of(study)), PLAN)
        try:
            done, failed = run_children(study, record)
            return _compare(study, record, done, failed)
        except BaseException:
            again = f"{command or f'mempo ablate {study.name}'} --resume {run_id}"
            say(f"the study is not done; to go on: {again}")
            raise


def _compare(
    study: Study, record: Record, done: dict[str, RunResult], failed: dict[str, str]
) -> AblationResult:
    tracker, run_id = record.tracker, record.run_id
    reasons = [f"{name}: {reason}" for name, reason in failed.items()]
    tracker.set_tags(run_id, {"mempo.failed": "\n".join(reasons)[:TAG_CHARACTERS]})
    if not done:
        raise RuntimeError(f"all {len(failed)} runs of the study failed; {reasons[0]}")
    chosen, notes = _best(study, done)
    failures = [f"{name} failed: {reason}" for name, reason in failed.items()]
    compared = {
        "title": f"{study.name}: {study.description}",
        "runs": [done[name].run_id for name in chosen],
        "baseline": study.baseline,
        "notes": [*failures, *_cut_off(tracker.find({"mlflow.parentRunId": run_id}), done), *notes],
    }
    tracker.log_text(run_id, json.dumps(compared), COMPARED)
    page, table = report_runs(tracker, [run_id], record.folder / "report")
    tracker.log_artifact(run_id, page.parent, "report")
    return AblationResult(run_id, done, failed, str(page), table)


def _cut_off(runs: list[RunInfo], done: dict[str, RunResult]) -> list[str]:
    """The tries that a run which is done needed before it, in words."""
    return [
        f"{run.name} was run anew: run {run.run_id} ended as {run.status} "
        f"({run.tags.get('mempo.reason', 'no reason given')})"
        for run in reversed(runs)
        if run.name in done and run.run_id != done[run.name].run_id
    ]


def _best(study: Study, done: dict[str, RunResult]) -> tuple[list[str], list[str]]:
    """The runs to compare, and what was left out: of a method's variants the best stands for it."""
    variants: dict[str, dict[str, list[str]]] = {}
    for child in study.children:
        if child.name in done:
            variants.setdefault(child.method, {}).setdefault(child.variant, []).append(child.name)
    if study.best is None:
        return list(done), []
    area = "eval_sampled" if study.best.mode == "sampled" else "eval"
    key = f"{area}/n{study.best.objectives}/{study.best.metric}"
    chosen: list[str] = []
    notes: list[str] = []
    for method, by_variant in variants.items():
        means = {
            variant: fmean((done[name].metrics or {}).get(key, nan) for name in names)
            for variant, names in by_variant.items()
        }
        # What was not measured (a NaN is smaller than nothing) is never the best.
        best = max(means, key=lambda variant: means[variant] if means[variant] >= 0 else -inf)
        chosen += by_variant[best]
        if len(means) > 1:
            listed = ", ".join(f"{v} {m:.3f}" for v, m in means.items())
            notes.append(
                f"{method} is {best}, the best by {key}: {listed}; chosen on the very questions "
                "that are reported, which flatters it"
            )
    return chosen, notes
