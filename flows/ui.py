"""The browsers' side: Prefect's and MLflow's servers over what lies under MEMPO_HOME."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from flows.progress import say

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 300.0  # fresh databases on a busy machine


def serve(prefect_port: int, mlflow_port: int) -> None:
    """Start both servers, say where they are, and stop them when this process is stopped.

    Raises:
        ValueError: a port is taken, or MEMPO_HOME cannot be written.
        RuntimeError: a server did not start, or ended by itself; its log is named.
    """
    from tasks import store, views
    from tasks.tracking import Tracker

    _check_free(prefect_port, "--prefect-port")
    _check_free(mlflow_port, "--mlflow-port")
    home = store.home()
    store.check_writable(home / "prefect")
    tracker = Tracker()
    client, experiment_id = tracker.connect()  # makes the database: the server finds it whole
    curves = (experiment_id, views.share(client, experiment_id))
    commands = {
        "Prefect": (f"http://{_HOST}:{prefect_port}", _prefect(prefect_port)),
        "MLflow": (f"http://{_HOST}:{mlflow_port}", _mlflow(mlflow_port, home)),
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    servers: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, (_, command) in commands.items():
            say(f"{name}: starting ...")
            log = _log(home, name)
            servers[name] = _start(command, log, home / "prefect", prefect_port, tracker.uri)
        for name, (address, _) in commands.items():
            _wait_healthy(name, servers[name], address, _log(home, name))
            print(f"{name}: {address}", flush=True)
        print(f"Runs compared: {views.compare_url(commands['MLflow'][0], *curves)}", flush=True)
        print("Ctrl-C stops both.", flush=True)
        while all(server.poll() is None for server in servers.values()):
            time.sleep(0.5)
        ended = [name for name, server in servers.items() if server.poll() is not None]
        raise RuntimeError(f"{ended[0]} ended by itself; see {_log(home, ended[0])}")
    except KeyboardInterrupt:
        say("stopping ...")
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)  # a second Ctrl-C must leave no server behind
        for server in servers.values():
            _stop(server)


def _prefect(port: int) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", _HOST, "--port", str(port)]


def _mlflow(port: int, home: Path) -> list[str]:
    return [
        *("-m", "mlflow", "server", "--host", _HOST, "--port", str(port), "--workers", "1"),
        *("--default-artifact-root", (home / "artifacts").as_uri()),
    ]


def _check_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{option} {port}: cannot be used ({error}); give another") from None


def _log(home: Path, name: str) -> Path:
    return home / f"{name.lower()}-ui.log"


def _start(
    arguments: list[str], log: Path, prefect_home: Path, prefect_port: int, mlflow_uri: str
) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    env |= {
        "PREFECT_HOME": str(prefect_home),
        # Not an argument, which every user of the machine could read: it may hold a password.
        "MLFLOW_BACKEND_STORE_URI": mlflow_uri,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": (
            f"sqlite+aiosqlite:///{prefect_home / 'prefect.db'}"
        ),
        # Otherwise the pages ask port 4200, whatever port they came from.
        "PREFECT_UI_API_URL": f"http://{_HOST}:{prefect_port}/api",
    }
    with log.open("wb") as output:
        # A session of its own, so that the server and its workers can be stopped together.
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_healthy(name: str, server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    path = "/api/health" if name == "Prefect" else "/health"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(address + path, timeout=5.0).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.3)
    raise RuntimeError(f"{name} did not start at {address}; see {log}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    for sign, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(server.pid, sign)
            server.wait(timeout=patience)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
