"""Databases that outlive a process: SQLite under MEMPO_HOME, or the Postgres of the environment."""

from __future__ import annotations

import os

from sqlalchemy import create_engine, make_url, text

from tasks import store

DATABASE_SETTING = "MEMPO_DATABASE_URL"


def optuna_url() -> str:
    """Where sweeps keep their trials: MEMPO_HOME/optuna.db, or schema `optuna` of the Postgres.

    The Postgres is that of MEMPO_DATABASE_URL (postgresql://user@host/name); a schema keeps its
    tables apart from those of others there.

    Raises:
        ValueError: MEMPO_DATABASE_URL is no address of a Postgres.
    """
    given = os.environ.get(DATABASE_SETTING, "")
    if not given:
        return f"sqlite:///{store.home() / 'optuna.db'}"
    if not given.startswith(("postgresql://", "postgresql+")):
        raise ValueError(
            f"{DATABASE_SETTING} must be an address such as postgresql://user@host:5432/name; "
            "correct it, or unset it for SQLite under MEMPO_HOME"
        )
    there = make_url(given).update_query_dict({"options": "-csearch_path=optuna"})
    if there.drivername == "postgresql":  # which driver that means depends on SQLAlchemy's version
        there = there.set(drivername="postgresql+psycopg2")
    return there.render_as_string(hide_password=False)


def make_schema(url: str, name: str) -> None:
    """Make the schema `name` of a Postgres where it is missing."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{name}"'))
    engine.dispose()


def shown(url: str) -> str:
    """An address for people's eyes, without its password."""
    return make_url(url).render_as_string(hide_password=True)
