"""What holds for all tests: patience, and a Postgres for those that ask for one."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core, so one thread for each process
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("mempo", deadline=None)  # a busy machine is no failure
settings.load_profile("mempo")

_numbers = itertools.count(1)


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The address of an empty database, with its password ('hunter2')."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    name = f"fresh{next(_numbers)}"
    address = postgres_server.replace("postgresql:", "postgresql+psycopg2:") + "/postgres"
    engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"create database {name}"))
    return f"{postgres_server}/{name}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A real Postgres on a free port of this machine; skips where none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = found[-1] if found else shutil.which("initdb")
    if not initdb:
        pytest.skip("there is no Postgres on this machine")
    programs, owner = Path(initdb).resolve().parent, _no_root()
    # Not pytest's folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="mempo-postgres-"))
    if owner:
        os.chown(folder, owner["user"], owner["group"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "password").write_text("hunter2")

    def call(name: str, *arguments: str) -> None:
        command = [str(programs / name), "-D", str(folder / "data"), *arguments]
        with (folder / f"{name}.txt").open("w") as output:  # the server holds on to a pipe
            done = subprocess.run(
                command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, **owner
            )
        assert done.returncode == 0, (folder / f"{name}.txt").read_text()

    try:
        call("initdb", "-U", "mempo", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}")
        options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        call("pg_ctl", "-w", "-o", options, "start")
        try:
            yield f"postgresql://mempo:hunter2@127.0.0.1:{port}"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_root() -> dict[str, Any]:
    """Of a subprocess: Postgres refuses root."""
    if os.getuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
