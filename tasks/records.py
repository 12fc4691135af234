"""What MLflow records of a run besides its metrics, and how to read runs back as tables."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

PARAMS_PER_BATCH = 100
PARAM_CHARACTERS = 6000  # MLflow refuses longer values


@dataclass(frozen=True)
class RunInfo:
    """A run as MLflow shows it; times in seconds since 1970, `end` None while it runs."""

    run_id: str
    name: str
    kind: str
    status: str
    start: float
    end: float | None
    parent: str | None
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]  # the latest point of each
    artifact_uri: str


def describe(run: Run) -> RunInfo:
    """The plain form of an MLflow run."""
    tags = dict(run.data.tags)
    ended = run.info.end_time if run.info.status != "RUNNING" else None  # a resumed run has one
    return RunInfo(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        kind=tags.get("mempo.kind", ""),
        status=run.info.status,
        start=(run.info.start_time or 0) / 1000,
        end=ended / 1000 if ended else None,
        parent=tags.get("mlflow.parentRunId"),
        params=dict(run.data.params),
        tags=tags,
        metrics=dict(run.data.metrics),
        artifact_uri=run.info.artifact_uri or "",
    )


def find(
    client: MlflowClient, experiment_id: str, tags: Mapping[str, str], status: str = ""
) -> list[RunInfo]:
    """The experiment's runs that have all these tags (and the status), newest first."""
    wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
    if status:
        wanted.append(f"attributes.status = '{status}'")
    found: list[RunInfo] = []
    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            " AND ".join(wanted),
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        found.extend(describe(run) for run in page)
        token = page.token
        if not token:
            return found


def curves(
    client: MlflowClient, run_ids: Sequence[str], metrics: Collection[str] | None = None
) -> pd.DataFrame:
    """All points of the runs' metrics (or of those named), a row a point.

    Columns: run_id, iteration, metric, value; ordered by run as given, metric, iteration.
    """
    rows = [
        (run_id, point.step, key, point.value)
        for run_id in run_ids
        for key in sorted(client.get_run(run_id).data.metrics)
        if metrics is None or key in metrics
        for point in history(client, run_id, key)
    ]
    return pd.DataFrame(rows, columns=["run_id", "iteration", "metric", "value"])


def history(client: MlflowClient, run_id: str, key: str) -> list[Metric]:
    """A metric's points in order of their steps."""
    return sorted(client.get_metric_history(run_id, key), key=lambda point: point.step)


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, object]) -> None:
    """Log a flattened configuration, in batches that MLflow takes."""
    shown = [Param(key, param_text(value)) for key, value in params.items()]
    for at in range(0, len(shown), PARAMS_PER_BATCH):
        client.log_batch(run_id, params=shown[at : at + PARAMS_PER_BATCH], synchronous=True)


def read_json(client: MlflowClient, run_id: str, file: str) -> Any:
    """The content of a run's JSON artifact; an empty list where the run has no such file.

    Raises:
        ValueError: it is no JSON, or lies elsewhere than a download of it may.
    """
    folder, _, _ = file.rpartition("/")
    if file not in {artifact.path for artifact in client.list_artifacts(run_id, folder)}:
        return []
    with tempfile.TemporaryDirectory() as aside:
        found = Path(client.download_artifacts(run_id, file, aside)).resolve()
        if not found.is_relative_to(Path(aside).resolve()):  # a server says what it is called
            raise ValueError(f"artifact {file} of run {run_id} leads out of its folder")
        return json.loads(found.read_text())


def param_text(value: object) -> str:
    """A configuration value as MLflow param: text as it is, anything else as JSON.

    MLflow takes 6,000 characters; a longer value ends in '...' (the whole configuration is an
    artifact of the run).
    """
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= PARAM_CHARACTERS else text[: PARAM_CHARACTERS - 3] + "..."


def git_commit() -> str:
    """The commit of the checkout this file belongs to, '-dirty' where tracked files differ.

    'unknown' where git does not track this file (an installed package, a plain copy) or is not
    there. Untracked files do not make a checkout dirty, as in `git describe --dirty`.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    here = Path(__file__).resolve()
    try:
        # A virtual environment inside somebody's checkout is not that checkout's code.
        git("ls-files", "--error-unmatch", here.name)
        commit = git("rev-parse", "HEAD")
        dirty = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if dirty else commit
