"""The databases that records go to: files under MEMPO_HOME, or one Postgres for all of them.

MEMPO_DATABASE_URL (postgresql://user:password@host/name) is environment and no setting, since
it may hold a password. MLflow's tables lie in its schema `mlflow`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, ProgrammingError
from sqlalchemy.pool import NullPool

from mempo.config.addresses import redacted
from tasks import store

__all__ = ["DATABASE", "creating", "mlflow_uri", "postgres_url", "redacted"]

DATABASE = "MEMPO_DATABASE_URL"
MLFLOW_SCHEMA = "mlflow"

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
    url = postgres_url()
    if url is None:
        return f"sqlite:///{home / 'mlflow.db'}"
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    options = f"{options} -csearch_path={MLFLOW_SCHEMA}".strip()
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
        if f"search_path={MLFLOW_SCHEMA}" in str(make_url(uri).query.get("options", "")):
            _make_schema(connection)
        connection.commit()
        yield


def _make_schema(connection: Connection) -> None:
    found = text("select 1 from pg_namespace where nspname = :name")
    if connection.execute(found, {"name": MLFLOW_SCHEMA}).first():
        return  # and no right to make schemas is needed
    try:
        connection.execute(text(f"create schema {MLFLOW_SCHEMA}"))
    except ProgrammingError as error:
        raise ValueError(
            f"{DATABASE}: this user may not make the schema '{MLFLOW_SCHEMA}'; make it for them"
        ) from error
