"""What a run shows on its page in Prefect: tags, progress, its result table, a link to MLflow.

All of it is for looking at; the record is MLflow's. Outside a flow run nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from conf.naming import run_name
from mempo.config import Experiment
from tasks.supervisor import mlflow_address
from tasks.tracking import Tracker

TAGS = ("kind", "algorithm", "agent", "preset", "seed", "study", "variant")  # mempo.* in MLflow


def named(kind: str) -> Callable[[], str]:
    """`flow_run_name` of a flow that takes an experiment: its MLflow run has the same name."""

    def name() -> str:
        given = flow_run.get_parameters()
        experiment = given["experiment"]
        if not isinstance(experiment, Experiment):
            experiment = Experiment.model_validate(experiment)
        return given.get("name") or run_name(experiment, kind)

    return name


class Progress:
    """A progress bar on the flow run's page: `done` of `total` units."""

    def __init__(self, total: int, what: str):
        self._total = total
        self._id: UUID | None = None
        if total > 0 and flow_run.get_id():
            created = create_progress_artifact(progress=0.0, description=f"{total} {what}")
            assert isinstance(created, UUID)  # not a coroutine: flows are synchronous
            self._id = created

    def show(self, done: int) -> None:
        if self._id is not None:
            update_progress_artifact(self._id, progress=100.0 * done / self._total)


def describe(tags: Mapping[str, str], tracker: Tracker, run_id: str) -> None:
    """Tag the flow run as its MLflow run is tagged, and link to that."""
    own_id = flow_run.get_id()
    if not own_id:
        return
    shown = [f"{name}:{tags[f'mempo.{name}']}" for name in TAGS if tags.get(f"mempo.{name}")]
    with get_client(sync_client=True) as client:
        before = client.read_flow_run(UUID(own_id)).tags
        client.update_flow_run(UUID(own_id), tags=list(dict.fromkeys([*before, *shown])))
    if url := run_url(tracker, run_id):
        create_link_artifact(
            url,
            link_text=f"MLflow run {run_id}",
            key=f"mlflow-{run_id[:8]}",
            description="The run's record: metrics, settings, checkpoints, report.",
        )


def run_url(tracker: Tracker, run_id: str) -> str:
    """Where a browser finds the MLflow run; '' where no server shows it.

    MEMPO_MLFLOW_URL says it where a browser has another name for the server than runs have.
    """
    served = os.environ.get("MEMPO_MLFLOW_URL", "")
    served = served or (tracker.uri if tracker.uri.startswith("http") else mlflow_address())
    if not served:
        return ""
    return f"{served.rstrip('/')}/#/experiments/{tracker.connect()[1]}/runs/{run_id}"


def show_evaluation(metrics: Mapping[str, float], run_id: str) -> None:
    """The metrics of an evaluation as a table: a row a number of objectives and mode."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for name, value in metrics.items():
        area, k, measure = [*name.split("/"), "", ""][:3]
        if area in ("eval", "eval_sampled") and k.startswith("n"):
            mode = "greedy" if area == "eval" else "sampled"
            row = rows.setdefault((k, mode), {"objectives": int(k[1:]), "mode": mode})
            row[measure] = round(value, 4) if value == value else None
    if rows and flow_run.get_id():
        create_table_artifact(
            list(rows.values()), key=f"evaluation-{run_id[:8]}", description="Evaluation"
        )
