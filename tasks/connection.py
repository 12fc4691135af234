"""Reaching MLflow: quiet, soon to give up on a silent server, and one creator per database."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

# MLflow reads the first two when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "1")
# A server that is down may cost an iteration seconds, not MLflow's own minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
# Traces are written before log_traces returns, so that none is lost with its process.
os.environ.setdefault("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from tasks import databases
from tasks.databases import redacted

OUTAGE = (MlflowException, OSError, SQLAlchemyError)


@lru_cache
def connect(uri: str, experiment: str, home: str) -> tuple[MlflowClient, str]:
    """The client and the id of the experiment, which is made where it is missing.

    Artifacts of a database lie under `home`; a server says itself where its own lie.

    Raises:
        ValueError: the experiment was deleted.
        MlflowException, OSError, SQLAlchemyError: the store cannot be reached.
    """
    local = not uri.startswith(("http://", "https://"))
    # The first one to touch a fresh database creates its tables, and they only once.
    with databases.creating(uri):
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            place = (Path(home) / "artifacts" / experiment).as_uri() if local else None
            try:
                return client, client.create_experiment(experiment, artifact_location=place)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = client.get_experiment_by_name(experiment)  # another host was faster
    if found is None or found.lifecycle_stage != "active":
        raise ValueError(
            f"tracking.experiment: '{experiment}' was deleted in {redacted(uri)}; restore it there "
            "or name another one"
        )
    return client, found.experiment_id


def unusable(uri: str, error: Exception) -> ValueError:
    """What a user is told who asked for a tracking store that cannot be used."""
    cure = "start it, or leave tracking.uri empty for SQLite under MEMPO_HOME"
    if "Invalid Host header" in str(error):
        cure = "start it with --allowed-hosts naming the host that you use"
    elif uri.startswith("postgresql"):
        cure = f"start it, or correct {databases.DATABASE}"
    elif uri.startswith("sqlite:"):
        cure = "move the file away if it is damaged or of another MLflow, or set MEMPO_HOME"
    where = redacted(uri)
    return ValueError(f"tracking.uri: no use of MLflow at {where} ({first_line(error)}); {cure}")


def first_line(error: Exception) -> str:
    """The first line of an error's message, at most 300 characters, without passwords."""
    return redacted((str(error).strip().splitlines() or [type(error).__name__])[0])[:300]
