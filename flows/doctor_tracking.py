"""The probe of the tracking store: a healthy MLflow server, or a database that opens."""

from __future__ import annotations

import httpx

from tasks import databases, store

_SERVER_TIMEOUT_S = 10.0
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_CURE = "start it, correct the address, or leave it empty for SQLite under MEMPO_HOME"


def check_tracking(uri: str) -> str:
    """What answers at `tracking.uri`. Raises a ValueError in one line otherwise."""
    if not uri:
        home = store.home()
        by_default = databases.mlflow_uri(home)
        if by_default.startswith("sqlite"):
            return f"SQLite, {home / 'mlflow.db'}"
        return _database(by_default)
    if uri.startswith(("http://", "https://")):
        return _server(uri)
    if uri.split(":")[0].split("+")[0] in _DATABASES:
        return _database(uri)
    raise ValueError(
        f"{uri} is no MLflow server and no database; write http://host:5000, "
        "sqlite:////folder/mlflow.db or postgresql+psycopg2://user@host/name, or leave it empty "
        "for SQLite under MEMPO_HOME"
    )


def _server(uri: str) -> str:
    try:
        reply = httpx.get(f"{uri.rstrip('/')}/health", timeout=_SERVER_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"no MLflow server answers at {uri} ({error}); {_CURE}") from None
    if "Invalid Host header" in reply.text:
        raise ValueError(f"MLflow at {uri} refuses that host; start it with --allowed-hosts for it")
    if reply.status_code != 200:
        raise ValueError(f"{uri}/health answers {reply.status_code}: no healthy MLflow; {_CURE}")
    return f"a healthy server at {uri}"


def _database(uri: str) -> str:
    from sqlalchemy import create_engine, inspect, make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        url = make_url(uri)
    except ArgumentError:  # its message would repeat a password
        raise ValueError(
            "this is no address of a database; write sqlite:////folder/mlflow.db or "
            "postgresql+psycopg2://user@host/name"
        ) from None
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ValueError(f"{shown} names no file; write sqlite:////folder/mlflow.db")
    try:
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            # SQLite opens any file; only reading the tables tells that it is a database.
            known = inspect(connection).has_table("experiments")
    except (SQLAlchemyError, ImportError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = databases.redacted(reason)[:300]
        raise ValueError(f"the database {shown} cannot be opened ({reason}); {_CURE}") from None
    return f"{shown}, {'a database of MLflow' if known else 'a fresh database'}"
