"""The `evaluate` flow: measure a policy without training it."""

from __future__ import annotations

from prefect import flow

from flows.connecting import connected
from flows.evaluation import evaluate_policy
from flows.prefect_page import named
from flows.recording import RunResult, method_name, recorded
from flows.report import log_report
from flows.stopping import stoppable
from mempo.config import Experiment
from tasks import stages
from tasks.environment import pick_threads
from tasks.placement import rl_models


@flow(
    name="evaluate",
    flow_run_name=named("evaluate"),
    task_runner=stages.ray_runner(),
    persist_result=False,
)
def evaluate(
    experiment: Experiment, name: str = "", parent: str = "", method: str = ""
) -> RunResult:
    """Evaluate `policy.model` at every number of objectives, greedy and sampled.

    Args:
        experiment: The whole configuration.
        name: Of the MLflow run; made from the settings by default.
        parent: id of the MLflow run that this one is a child of.
        method: how tables and pictures call it.
    """
    experiment = experiment.model_copy(update={"iterations": 0})
    with connected([experiment], "evaluate"):
        return stoppable(_recorded, experiment, name, parent, method)


def _recorded(experiment: Experiment, name: str, parent: str, method: str) -> RunResult:
    label = name or method or method_name(experiment)
    with (
        recorded(experiment, "evaluate", name=name, parent=parent, method=method) as record,
        rl_models(experiment, pick_threads(experiment.cluster)) as models,
    ):
        metrics = evaluate_policy(experiment, record, models, 0, label)
        page, table = log_report(record.tracker, record.run_id, record.folder / "report")
        return RunResult(
            record.run_id, str(record.folder), metrics=metrics, report=page, table=table
        )
