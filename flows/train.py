"""The `train` flow: a run around its training loop, from its start or from where it was cut off."""

from __future__ import annotations

from dataclasses import replace

from prefect import flow

from flows.connecting import connected
from flows.prefect_page import named
from flows.progress import say
from flows.recording import Record, RunResult, method_name, recorded
from flows.report import log_report
from flows.resuming import last_checkpoint
from flows.stopping import stoppable
from flows.training import Training
from flows.watching import Pruned, current_watch
from mempo.config import Experiment
from tasks import stages
from tasks.environment import pick_threads
from tasks.placement import ModelLost, rl_models


@flow(
    name="train",
    flow_run_name=named("train"),
    task_runner=stages.ray_runner(),
    persist_result=False,
)
def train(
    experiment: Experiment,
    name: str = "",
    parent: str = "",
    method: str = "",
    tags: dict[str, str] | None = None,
    resume: str = "",
) -> RunResult:
    """Train a policy from `policy.model` for `iterations`, and evaluate it.

    Where a model's process or node dies, new models go on from the last checkpoint.

    Args:
        experiment: The whole configuration.
        name: Of the MLflow run; made from the settings by default.
        parent: id of the MLflow run that this one is a child of.
        method: how tables and pictures call it.
        tags: further tags of its MLflow run.
        resume: id of the MLflow run that goes on from its last checkpoint, on the threads that it
            had; `experiment` is its configuration.
    """
    with connected([experiment]):
        return stoppable(_recorded, experiment, name, parent, method, tags, resume)


def _recorded(
    experiment: Experiment,
    name: str,
    parent: str,
    method: str,
    tags: dict[str, str] | None,
    resume: str,
) -> RunResult:
    label = name or method or method_name(experiment)
    with recorded(
        experiment, "train", name=name, parent=parent, method=method, tags=tags, resume=resume
    ) as record:
        say(f"MLflow run {record.run_id}", label)
        try:
            result = _train(experiment, record, label)
        except Pruned as stop:  # a good end: the run is closed as FINISHED
            record.tracker.set_tags(record.run_id, {"mempo.pruned": str(stop.iteration)})
            return RunResult(record.run_id, str(record.folder), pruned=stop.iteration)
        except BaseException:
            if not parent and last_checkpoint(record.run_id):
                say(f"the run is not done; to go on: mempo train --resume {record.run_id}")
            raise
        if parent:  # the study's page shows it
            return result
        page, table = log_report(record.tracker, record.run_id, record.folder / "report")
        return replace(result, report=page, table=table)


def _train(experiment: Experiment, record: Record, label: str) -> RunResult:
    """Train, and begin anew from the last checkpoint where models were lost."""
    cluster = experiment.cluster
    failures, reached = 0, -1
    while True:
        begun = last_checkpoint(record.run_id)
        # On the threads that it had: their number decides the last bits of sums.
        threads = begun.state["threads"] if begun else pick_threads(cluster)
        done = begun.iteration if begun else 0
        failures, reached = (0 if done > reached else failures), max(done, reached)
        try:
            with rl_models(experiment, threads) as models:
                record.tracker.set_tags(record.run_id, {"mempo.nodes": " ".join(models.nodes)})
                return Training(experiment, record, models, label, threads, current_watch()).run(
                    begun
                )
        except ModelLost as lost:
            failures += 1
            if failures > cluster.recoveries:
                raise
            say(f"{lost}; going on with new models ({failures} of {cluster.recoveries})", label)
