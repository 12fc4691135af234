"""A run's checkpoint in MLflow's model registry, where an alias says which version is in use.

The bytes stay where they are: the version's tags, as the logged model's params, say where.
"""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from tasks import connection, delivery
from tasks.connection import OUTAGE, first_line
from tasks.traces import addressed_to
from tasks.tracking import Tracker

KEPT = ("uri", "sha256", "bytes", "step")  # of the checkpoint, as tags mempo.* of the version


def register(tracker: Tracker, run_id: str, name: str, alias: str) -> str:
    """Make the run's best checkpoint, else its last, a version of model `name` called `alias`.

    A checkpoint that is a version already stays that version, and `alias` moves to it. Returns
    the version's number.

    Raises:
        ValueError: one line; the run has no checkpoint, MLflow refuses a name, or is not there.
    """
    client, experiment_id = tracker.connect()
    try:
        model = checkpoint_of(client, experiment_id, run_id)
        version = _version(client, tracker.uri, name, model)
        client.set_registered_model_alias(name, alias, version)
    except OUTAGE as error:
        if delivery.rejected(error):
            raise ValueError(f"cannot register run {run_id}: {first_line(error)}") from error
        raise connection.unusable(tracker.uri, error) from error
    return version


def checkpoint_of(client: MlflowClient, experiment_id: str, run_id: str) -> LoggedModel:
    """The logged model of the run's best checkpoint, else of its last; deleted ones are none.

    Raises:
        ValueError: there is none, or what MLflow knows of one is damaged.
    """
    found = [
        model
        for model in delivery.checkpoints(client, experiment_id, run_id)
        if delivery.DELETED not in model.tags
    ]
    if not found:
        raise ValueError(f"run {run_id} has no checkpoint in MLflow that could be registered")
    for model in found:
        _check(model, run_id)
    best = [model for model in found if model.tags.get(delivery.BEST) == "true"]
    return max(best or found, key=lambda model: int((model.params or {})["step"]))


def _check(model: LoggedModel, run_id: str) -> None:
    """Refuse a record without one of `KEPT`, or with a step that is no number."""
    params = model.params or {}
    wrong = [key for key in KEPT if not params.get(key)]
    wrong += [] if params.get("step", "0").isdecimal() else ["step"]
    if wrong:
        raise ValueError(
            f"run {run_id}: MLflow's record of its checkpoint {model.model_id} is damaged "
            f"('{wrong[0]}' is {params.get(wrong[0])!r}); delete that logged model in MLflow, and "
            "the others count"
        )


def _version(client: MlflowClient, uri: str, name: str, model: LoggedModel) -> str:
    source = f"models:/{model.model_id}"
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == source or version.model_id == model.model_id:
            return str(version.version)
    params = model.params or {}
    run_id = model.source_run_id or ""
    tags = {"mempo.run_id": run_id} | {f"mempo.{key}": params.get(key, "") for key in KEPT}
    # A database's registry looks models up at the process's own address.
    with addressed_to(uri):
        made = client.create_model_version(
            name, source, run_id=run_id, model_id=model.model_id, tags=tags
        )
    return str(made.version)
