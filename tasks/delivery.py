"""How a journal's entries become calls to MLflow, each at most once.

Kinds of entries: `metrics` (step, metrics), `tags` (tags), `artifact` (path, folder), `text`
(text, file), `checkpoint` (step, name, params, metrics), `best` and `drop` (step), `finish`
(status).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, Metric, RunTag
from mlflow.exceptions import MlflowException

from tasks import journal

# MLflow takes 1,000 entities in a batch; one of them is the heartbeat.
POINTS_PER_BATCH = 999
HEARTBEAT = "mempo.heartbeat"
DELETED = "mempo.deleted"
BEST = "mempo.best"
METRIC_NAME = re.compile(r"[\w.\-: ]+(/[\w.\-: ]+)*")

log = logging.getLogger(__name__)


def check_names(metrics: Mapping[str, float]) -> None:
    """Refuse metric names that MLflow would refuse, before they are in the journal.

    Raises:
        ValueError: naming the metric and what a name may hold.
    """
    for name in metrics:
        if len(name) > 250 or not METRIC_NAME.fullmatch(name):
            raise ValueError(
                f"metric '{name[:60]}' cannot be logged: a name has at most 250 letters, digits "
                "and _ - . : / or spaces"
            )


def rejected(error: Exception) -> bool:
    """Whether MLflow understood a request and refused it: sending it again cannot help."""
    # A proxy before a server that restarts may answer 404 too; that is not MLflow speaking.
    return (
        isinstance(error, MlflowException)
        and error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
        and not error.message.startswith("API request to endpoint")
    )


def deliver(
    client: MlflowClient, experiment_id: str, run_id: str, folder: Path, *, check: bool
) -> None:
    """Send every entry that MLflow has not confirmed, in order. The caller holds the lock.

    `check`: entries may have arrived although nobody noted it (a kill after sending, an answer
    that got lost), so ask MLflow first which points it has.

    Raises:
        MlflowException, OSError: what MLflow and the network raise; a refused entry is not
            tried again.
    """
    pending = journal.read(folder, journal.sent(folder))
    entries = [line.entry for line in pending]
    steps = {entry["step"] for entry in entries if "metrics" in entry}
    points = journal.first_points(journal.at_steps(folder, steps))
    known = _known(client, run_id, entries) if check else set()
    while pending:
        # Neighbouring metrics travel together: after an outage that is one request, not many.
        metrics = list(takewhile(lambda line: line.entry["kind"] == "metrics", pending))
        group = metrics or pending[:1]
        pending = pending[len(group) :]
        ends = {line.end for line in group}
        try:
            if metrics:
                chosen = [
                    Metric(key, point.value, point.time, step)
                    for (key, step), point in points.items()
                    if point.end in ends and (key, step) not in known
                ]
                _send_points(client, run_id, chosen, group[-1].entry["time"])
            else:
                _send(client, experiment_id, run_id, group[0].entry, points)
        except MlflowException as error:
            if rejected(error):
                journal.mark_sent(folder, group[-1].end)
            raise
        journal.mark_sent(folder, group[-1].end)


def checkpoints(
    client: MlflowClient, experiment_id: str, run_id: str, step: int | None = None
) -> list[LoggedModel]:
    """The logged models of a run's checkpoints (at `step` or all), newest first."""
    wanted = f"source_run_id = '{run_id}'"
    wanted += "" if step is None else f" AND params.step = '{step}'"
    found: list[LoggedModel] = []
    token = None
    while True:
        page = client.search_logged_models([experiment_id], filter_string=wanted, page_token=token)
        found.extend(model for model in page if "step" in (model.params or {}))
        token = page.token
        if not token:
            return found


def _known(
    client: MlflowClient, run_id: str, entries: list[dict[str, Any]]
) -> set[tuple[str, int]]:
    keys = {key for entry in entries for key in entry.get("metrics", {})}
    return {(key, point.step) for key in keys for point in client.get_metric_history(run_id, key)}


def _send_points(client: MlflowClient, run_id: str, points: list[Metric], time: int) -> None:
    heartbeat = [RunTag(HEARTBEAT, str(time // 1000))]
    for start in range(0, max(len(points), 1), POINTS_PER_BATCH):
        batch = points[start : start + POINTS_PER_BATCH]
        client.log_batch(run_id, metrics=batch, tags=heartbeat, synchronous=True)


def _send(
    client: MlflowClient,
    experiment_id: str,
    run_id: str,
    entry: dict[str, Any],
    points: dict[tuple[str, int], journal.Point],
) -> None:
    match entry["kind"]:
        case "tags":
            tags = [RunTag(key, value) for key, value in entry["tags"].items()]
            client.log_batch(run_id, tags=tags, synchronous=True)
        case "artifact" if not Path(entry["path"]).exists():
            log.warning("%s is gone before the tracking server could take it", entry["path"])
        case "artifact":
            client.log_artifact(run_id, entry["path"], entry["folder"] or None)
        case "text":
            client.log_text(run_id, entry["text"], entry["file"])
        case "checkpoint":
            _send_checkpoint(client, experiment_id, run_id, entry, points)
        case "best":
            for model in checkpoints(client, experiment_id, run_id):
                best = str((model.params or {})["step"] == str(entry["step"])).lower()
                if model.tags.get(BEST, "false") != best:
                    client.set_logged_model_tags(model.model_id, {BEST: best})
        case "drop":
            for model in checkpoints(client, experiment_id, run_id, entry["step"]):
                client.set_logged_model_tags(model.model_id, {DELETED: "true"})
        case "finish":
            client.set_terminated(run_id, entry["status"], entry["time"])
        case kind:
            raise AssertionError(f"a journal entry of kind {kind}")


def _send_checkpoint(
    client: MlflowClient,
    experiment_id: str,
    run_id: str,
    entry: dict[str, Any],
    points: dict[tuple[str, int], journal.Point],
) -> None:
    step = entry["step"]
    twins = [
        model
        for model in checkpoints(client, experiment_id, run_id, step)
        if model.params == entry["params"] and DELETED not in model.tags
    ]
    model = twins[0] if twins else None
    if model is None:
        model = client.create_logged_model(
            experiment_id,
            name=entry["name"],
            source_run_id=run_id,
            params=entry["params"],
            model_type="checkpoint",
        )
    client.finalize_logged_model(model.model_id, "READY")
    outputs = client.get_run(run_id).outputs
    if model.model_id not in {out.model_id for out in (outputs.model_outputs if outputs else [])}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
    # Points with the time and value that the run already has are the same points to MLflow,
    # so this ties them to the model and doubles none.
    tied = [
        Metric(key, point.value, point.time, step, model_id=model.model_id)
        for key in entry["metrics"]
        if (point := points.get((key, step))) is not None
    ]
    _send_points(client, run_id, tied, entry["time"])
