"""Long-running services of this machine under one supervisor, and a file that says where they are.

MEMPO_HOME/services/
    services.json   the supervisor's process and the address of each service, while they run
    logs/NAME.log   what each service said, the supervisor too; NAME.log.1: at the start before

`python -m tasks.supervisor` is the supervisor: honcho runs the services that it is told on standard
input and, where one of them ends, ends all the others.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tasks import processes, store

WORKER = "prefect worker start"  # the module and its arguments
POLL_S = 0.3
RESTART_S = 3.0
SERVICES_END_S = 15.0
FLOWS_END_S = 30.0  # what a run needs to close its record and to free its actors

_started: set[subprocess.Popen[bytes]] = set()  # Python warns where one that runs is let go of


@dataclass(frozen=True)
class Service:
    """One service: how it is started, where it is, and whether it is well."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]  # beside the environment of whoever starts it; may hold secrets
    address: str
    healthy: Callable[[], bool]
    after: str = (
        ""  # a URL that has to answer first; such a service is started again where it fails
    )


def folder() -> Path:
    return store.home() / "services"


def log_of(name: str) -> Path:
    return folder() / "logs" / f"{name}.log"


def state() -> dict[str, Any] | None:
    """pid, birth and addresses of the supervisor of this MEMPO_HOME; None where none runs."""
    try:
        found = json.loads((folder() / "services.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return found if processes.birth(found["pid"]) == found["born"] else None


def running() -> dict[str, str]:
    """The address of each service by name; empty where no supervisor of this MEMPO_HOME runs."""
    found = state()
    return found["addresses"] if found else {}


def mlflow_address() -> str:
    """Where MLflow's pages over this MEMPO_HOME are; '' where they are not served."""
    return running().get("mlflow", "")


def start(services: Sequence[Service], timeout_s: float, say: Callable[[str], None]) -> None:
    """Start the services, and return when all of them are healthy.

    Raises:
        RuntimeError: one ended or was not healthy in time; all are stopped, its log is named.
    """
    store.check_writable(folder() / "logs")
    for name in ("supervisor", *(service.name for service in services)):
        if log_of(name).exists():
            log_of(name).replace(log_of(name).with_suffix(".log.1"))
    told = [
        {"name": s.name, "command": _awaiting(s), "env": dict(s.env), "log": str(log_of(s.name))}
        for s in services
    ]
    with log_of("supervisor").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tasks.supervisor"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started.add(supervisor)
    assert supervisor.stdin is not None
    supervisor.stdin.write(json.dumps(told).encode())
    supervisor.stdin.close()
    addresses = {service.name: service.address for service in services}
    born = processes.birth(supervisor.pid)
    aside = folder() / "services.json.partial"
    aside.write_text(json.dumps({"pid": supervisor.pid, "born": born, "addresses": addresses}))
    aside.rename(folder() / "services.json")
    try:
        _wait_healthy(services, supervisor, timeout_s, say)
    except BaseException:
        stop()
        raise


def _awaiting(service: Service) -> list[str]:
    """Its command, behind a wait for what it comes after, which also starts it again."""
    if not service.after:
        return list(service.command)
    return [sys.executable, "-m", "tasks.supervisor", service.after, *service.command]


def _wait_healthy(
    services: Sequence[Service],
    supervisor: subprocess.Popen[bytes],
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    begin = time.monotonic()
    waiting = {service.name: service for service in services}
    while waiting:
        if supervisor.poll() is not None:
            ended = _first_to_end([service.name for service in services])
            raise RuntimeError(f"{ended} ended by itself; see {log_of(ended)}")
        if time.monotonic() - begin > timeout_s:
            name = next(iter(waiting))
            raise RuntimeError(f"{name} is not healthy after {timeout_s:.0f} s; see {log_of(name)}")
        for name in [name for name, service in waiting.items() if service.healthy()]:
            say(f"{name}: ready after {time.monotonic() - begin:.0f} s")
            del waiting[name]
        time.sleep(POLL_S)


def _first_to_end(names: Sequence[str]) -> str:
    """Which service ended first, as the supervisor's log tells it."""
    for line in log_of("supervisor").read_text(errors="replace").splitlines():
        for name in names:
            if f"{name} stopped" in line:
                return name
    return "supervisor"


def stop_flows() -> bool:
    """End the runs of the worker, while there is a server that takes their last words.

    Returns whether there were any.
    """
    everything = _everything()
    workers = [p for p in everything if _command(p).partition(" -m ")[2].startswith(WORKER)]
    flows = [child for worker in workers for child in worker.children()]
    processes.end(flows, FLOWS_END_S)
    return bool(flows)


def stop() -> bool:
    """Stop the services of this MEMPO_HOME, and whatever they started; False where none ran."""
    everything = _everything()
    if everything:
        processes.end(everything, SERVICES_END_S, first=everything[0])
    _started.difference_update([process for process in _started if process.poll() is not None])
    (folder() / "services.json").unlink(missing_ok=True)
    return bool(everything)


def _everything() -> list[Any]:
    """The supervisor's process and all below it."""
    import psutil

    found = state()
    if found is None:
        return []
    try:
        supervisor = psutil.Process(found["pid"])
        return [supervisor, *supervisor.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _command(process: Any) -> str:
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def main() -> None:
    """Run the services that standard input names, until SIGTERM or until one of them ends."""
    from honcho.manager import Manager

    manager = Manager()
    for service in json.load(sys.stdin):
        command = shlex.join(service["command"])
        manager.add_process(
            service["name"],
            f"exec {command} > {shlex.quote(service['log'])} 2>&1 < /dev/null",
            env={**os.environ, **service["env"]},
        )
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may be closed
    manager.loop()
    sys.exit(manager.returncode)


def keep_running(url: str, command: Sequence[str]) -> None:
    """Run `command` once `url` answers, and again where it fails, until SIGTERM.

    Its end must not end the servers: they hold the runs of others.
    """
    stopped: list[int] = []
    # The signal is for the whole group; who goes first leaves the other to nobody.
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    while not stopped:
        while not answers(url):
            if stopped:
                return
            time.sleep(POLL_S)
        ended = subprocess.run(command, check=False).returncode
        if ended == 0 or stopped:
            return
        print(f"ended with status {ended}; started again", flush=True)
        time.sleep(RESTART_S)


def answers(url: str) -> bool:
    """Whether a healthy server answers at `url`."""
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False  # not listening yet


if __name__ == "__main__":
    if len(sys.argv) > 1:
        keep_running(sys.argv[1], sys.argv[2:])
    else:
        main()
