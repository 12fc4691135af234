"""The `ablate` flow: the runs of a study as child runs of one MLflow run, then one report."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from statistics import fmean

from prefect import flow

from conf.study import Child, Study
from flows.progress import say
from flows.recording import Record, RunResult, recorded
from flows.report import COMPARED, report_runs
from flows.train import train
from tasks import stages


@dataclass(frozen=True)
class AblationResult:
    """The parent run, its children by name, the failures, and the page that compares them."""

    run_id: str
    children: dict[str, RunResult]
    failed: dict[str, str]
    report: str
    table: str


@flow(
    name="ablate", task_runner=stages.ray_runner(), persist_result=False, validate_parameters=False
)
def ablate(study: Study) -> AblationResult:
    """Run every child of a study; `cluster.parallel` of them side by side.

    A failed child is reported and the others go on; only if all fail the flow fails.
    """
    first = study.children[0].experiment
    with recorded(first, "ablate", name=study.name, method=study.name) as record:
        done, failed = _run_children(study, record)
        if not done:
            name, reason = next(iter(failed.items()))
            raise RuntimeError(f"all {len(failed)} runs of the study failed; {name}: {reason}")
        chosen, notes = _best(study, done)
        compared = {
            "title": f"{study.name}: {study.description}",
            "runs": [done[name].run_id for name in chosen],
            "notes": [*(f"{name} failed: {reason}" for name, reason in failed.items()), *notes],
        }
        record.tracker.log_text(record.run_id, json.dumps(compared), COMPARED)
        page, table = report_runs(record.tracker, [record.run_id], record.folder / "report")
        record.tracker.log_artifact(record.run_id, page.parent, "report")
        if failed:
            record.tracker.set_tags(record.run_id, {"mempo.failed": ", ".join(failed)})
        return AblationResult(record.run_id, done, failed, str(page), table)


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
            variant: fmean((done[name].metrics or {})[key] for name in names)
            for variant, names in by_variant.items()
        }
        best = max(means, key=lambda variant: means[variant])
        chosen += by_variant[best]
        if len(means) > 1:
            listed = ", ".join(f"{v} {m:.3f}" for v, m in means.items())
            notes.append(f"{method} is {best}, the best by {key}: {listed}")
    return chosen, notes


def _run_children(study: Study, record: Record) -> tuple[dict[str, RunResult], dict[str, str]]:
    done: dict[str, RunResult] = {}
    failed: dict[str, str] = {}

    def run(child: Child) -> None:
        try:
            done[child.name] = train(
                child.experiment, name=child.name, parent=record.run_id, method=child.method
            )
        except Exception as error:  # the edge: one run's failure must not end the others
            failed[child.name] = f"{type(error).__name__}: {error}"
            say(f"failed: {failed[child.name]}", child.name)

    parallel = study.children[0].experiment.cluster.parallel
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        # Each thread gets the flow's context, so that children are sub-flows of this one.
        futures = [pool.submit(copy_context().run, run, child) for child in study.children]
        for future in futures:
            future.result()
    order = [c.name for c in study.children]
    return {n: done[n] for n in order if n in done}, failed
