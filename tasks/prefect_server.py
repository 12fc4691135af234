"""One Prefect server per command: the one that is configured, or one of the command's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx

from tasks import processes, store
from tasks.databases import prefect_env
from tasks.environment import QUIET
from tasks.supervisor import answers

_HEALTH_TIMEOUT_S = 10.0
_END_S = 10.0
_START_TIMEOUT_S = 300.0  # migrations of a fresh database on a busy machine


def configured_prefect_url() -> str:
    """Address of the Prefect API that the environment or the active profile names, or ''."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    # Prefect reads the environment when it is imported; what counts is what it says now.
    refresh_global_settings_context()
    return get_current_settings().api.url or ""


@contextmanager
def prefect_server(say: Callable[[str], None] = print) -> Iterator[str]:
    """One Prefect server for the block, in PREFECT_API_URL; yields its address.

    A configured server (PREFECT_API_URL or the active profile) is used as it is. Otherwise one is
    started, with its database in MEMPO_HOME/prefect, and stopped at the end. `say` gets a line of
    progress.

    Raises:
        ValueError: a configured server does not answer.
        RuntimeError: no server could be started; the end of its output is in the message.
    """
    from prefect.logging.handlers import APILogHandler

    if url := configured_prefect_url():
        check_prefect(url)
        with using(url):
            yield url
        return
    with _started(say) as url, using(url):
        try:
            yield url
        finally:
            APILogHandler().flush()  # its last lines, while there is somebody to take them


def check_prefect(url: str) -> None:
    """Raise a ValueError that names PREFECT_API_URL if no healthy server answers at `url`."""
    cure = (
        "start it, correct PREFECT_API_URL (`prefect config view` shows the active profile), or "
        "unset it to use a server of this command's own"
    )
    try:
        reply = httpx.get(f"{url.rstrip('/')}/health", timeout=_HEALTH_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"PREFECT_API_URL: no server answers at {url} ({reason}); {cure}"
        ) from None
    if reply.status_code != 200:
        raise ValueError(
            f"PREFECT_API_URL: {url}/health answers {reply.status_code}, so it is no healthy "
            f"Prefect API; the address ends in /api; {cure}"
        )


@contextmanager
def _started(say: Callable[[str], None]) -> Iterator[str]:
    import psutil

    folder = store.home() / "prefect"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, **QUIET, **prefect_env()}
    env |= {
        # The ephemeral kind has no UI, scheduler or late-run watcher, and starts in half the time.
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # Why it ends is in its output alone, and commands quieten their own console.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    }
    say("Prefect server: starting ...")
    begin = time.monotonic()
    with TemporaryFile() as output:
        # A session of its own: Ctrl-C ends the flow, which must still report to the server.
        server = psutil.Popen(
            [sys.executable, "-m", "tasks.prefect_app", str(port)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}/api"
            if not _healthy(url, server):
                output.seek(0)
                raise RuntimeError(
                    _why_not(output.read().decode(errors="replace"), server.poll(), folder)
                )
            say(f"Prefect server: ready after {time.monotonic() - begin:.0f} s")
            yield url
        finally:
            processes.end([server], _END_S)
            server.stdin.close()


def _why_not(output: str, exit_code: int | None, folder: Path) -> str:
    """Why the server did not start, from its output; `exit_code` None: it is still trying."""
    if "No such revision" in output or "Can't locate revision" in output:
        return (
            f"the Prefect server did not start: {folder / 'prefect.db'} was written by a newer "
            f"Prefect than {version('prefect')}; move {folder} away (it holds Prefect's pages of "
            "earlier runs, MLflow's stay), or use an environment with that Prefect"
        )
    how = f"within {_START_TIMEOUT_S:.0f} s" if exit_code is None else f"(exit code {exit_code})"
    # An abort ends with the interpreter's own lines; what led to it stands above them.
    said = output.partition("\nFatal Python error")[0]
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    return f"the Prefect server did not start {how}: {' | '.join((errors or lines)[-3:])}"


def _healthy(url: str, server: Any) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        if answers(f"{url}/health"):
            return True
        time.sleep(0.1)
    return False


@contextmanager
def using(url: str) -> Iterator[None]:
    """`url` as PREFECT_API_URL of this process, all of its threads and its children."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL, temporary_settings

    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = url
    # New threads read the global settings; this one may stand in a settings context of its own.
    refresh_global_settings_context()
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            yield
    finally:
        if before is None:
            os.environ.pop("PREFECT_API_URL", None)
        else:
            os.environ["PREFECT_API_URL"] = before
        refresh_global_settings_context()
