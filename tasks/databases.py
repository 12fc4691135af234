"""The databases that records go to: files under MEMPO_HOME, or one Postgres for all of them.

MEMPO_DATABASE_URL (postgresql://user:password@host/name) is environment and no setting, since
it may hold a password. MLflow, Prefect and Optuna have tables of the same names, so each has a
schema of its own there: `mlflow`, `prefect`, `optuna`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, ProgrammingError
from sqlalchemy.pool import NullPool

from mempo.config.addresses import redacted
from tasks import store

__all__ = ["creating", "mlflow_uri", "optuna_uri", "postgres_url", "prefect_env", "redacted"]

DATABASE = "MEMPO_DATABASE_URL"

_CONNECT_TIMEOUT_S = "10"  # of the driver: minutes, where packets get lost
_LOCK = 0x6D656D706F  # "mempo"; of Postgres' advisory locks, the one around making tables


def postgres_url() -> URL | None:
    """MEMPO_DATABASE_URL, None where it is not set.

    Raises:
        ValueError: it is no address of a Postgres; the message does not repeat it.
    """
    given = os.environ.get(DATABASE, "").strip()
    if not given:
        return None
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # its message could repeat a password
        url = None
    if url is None or url.get_backend_name() not in ("postgresql", "postgres") or not url.database:
        raise ValueError(
            f"{DATABASE}: is no address of a Postgres; write postgresql://user@host/name"
        )
    return url.set(drivername="postgresql+psycopg2")  # the default is another one by version


def mlflow_uri(home: Path) -> str:
    """Where MLflow records by default: SQLite under `home`, or the database of DATABASE."""
    return _in_schema("mlflow") or f"sqlite:///{home / 'mlflow.db'}"


def optuna_uri() -> str:
    """Where sweeps keep their trials: MEMPO_HOME/optuna.db, or the database of DATABASE."""
    return _in_schema("optuna") or f"sqlite:///{store.home() / 'optuna.db'}"


def prefect_env() -> dict[str, str]:
    """The environment in which a Prefect server finds its database, and its schema there.

    The database is MEMPO_HOME/prefect/prefect.db, or that of DATABASE.
    """
    folder = store.home() / "prefect"
    store.check_writable(folder)
    env = {"PREFECT_HOME": str(folder)}
    uri = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    if url := postgres_url():
        with creating(_in_schema("prefect")):
            uri = url.set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
        env["PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH"] = "prefect"
    return {**env, "PREFECT_SERVER_DATABASE_CONNECTION_URL": uri}


def _in_schema(schema: str) -> str:
    """The address of DATABASE with `schema` as the place of all tables; '' where it is not set."""
    url = postgres_url()
    if url is None:
        return ""
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    options = f"{options} -csearch_path={schema}".strip()
    query = {"connect_timeout": _CONNECT_TIMEOUT_S, **url.query, "options": options}
    return url.set(query=query).render_as_string(hide_password=False)


@contextmanager
def creating(uri: str) -> Iterator[None]:
    """The block is the only one that makes tables at `uri`, and finds the schema for them there.

    Raises:
        ValueError: the database's driver is not installed.
        SQLAlchemyError: no connection.
    """
    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///"))
        with store.locked(database.with_name(database.name + ".lock")):
            yield
    elif uri.startswith("postgresql"):
        with _postgres_lock(uri):
            yield
    else:
        yield


@contextmanager
def _postgres_lock(uri: str) -> Iterator[None]:
    try:
        engine = create_engine(uri, poolclass=NullPool)
    except ImportError as error:
        raise ValueError(
            f"Postgres wants its driver ({error}); pip install 'mempo[postgres]'"
        ) from None
    # Freed with the connection, so a kill leaves nobody waiting.
    with engine.connect() as connection:
        connection.execute(text(f"select pg_advisory_lock({_LOCK})"))
        options = str(make_url(uri).query.get("options", ""))
        if schema := re.search(r"search_path=(mlflow|prefect|optuna)$", options):
            _make_schema(connection, schema[1])
        connection.commit()
        yield


def _make_schema(connection: Connection, schema: str) -> None:
    found = text("select 1 from pg_namespace where nspname = :name")
    if connection.execute(found, {"name": schema}).first():
        return  # and no right to make schemas is needed
    try:
        connection.execute(text(f"create schema {schema}"))
    except ProgrammingError as error:
        raise ValueError(
            f"{DATABASE}: this user may not make the schema '{schema}'; make it for them"
        ) from error
