"""Prefect, MLflow, a Ray head and a worker on this machine, on its loopback interface alone."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path

import httpx

from conf.schedule import load_schedules
from flows.progress import say
from flows.serving import POOL, WORKER, WORKER_ENV, offer
from mempo.config import Tracking

HOST = "127.0.0.1"
TIMEOUT_S = 300.0  # fresh databases on a busy machine
RAY_PORT = 26379  # as conf/cluster/services.yaml has it; Ray's own workers use 10002 to 19999


def up(
    prefect_port: int, mlflow_port: int, ray_port: int, limit: int, schedules: Path
) -> dict[str, str]:
    """Start the services, or find them running; the address of each by name.

    Raises:
        ValueError: a port is taken, a schedule is wrong, or MEMPO_HOME cannot be written.
        RuntimeError: a service did not start; its log is named.
    """
    from tasks import store, supervisor
    from tasks.prefect_server import using

    load_schedules(schedules)
    store.check_writable(supervisor.folder())
    with store.locked(supervisor.folder() / "lock"):  # the second of two finds them running
        if found := supervisor.running():
            say("the services of this MEMPO_HOME are running already")
            return found
        _check_ports(prefect_port, mlflow_port, ray_port)
        say("services: starting ... (a fresh database takes a minute)")
        supervisor.start(_services(prefect_port, mlflow_port, ray_port), TIMEOUT_S, say)
        try:
            with using(f"{supervisor.running()['prefect']}/api"):
                here = [f"cluster.address={HOST}:{ray_port}"]
                offer("services", here, limit, schedules)
        except BaseException:
            supervisor.stop()
            raise
        return supervisor.running()


def down() -> bool:
    """Stop the services, runs that go on first; False where none ran."""
    from tasks import store, supervisor

    store.check_writable(supervisor.folder())
    with store.locked(supervisor.folder() / "lock"):
        found = supervisor.running()
        if found:
            cut_off = supervisor.stop_flows()
            if cut_off and supervisor.answers(f"{found['prefect']}/api/health"):
                from tasks.prefect_server import using
                from tasks.reaping import crash_lost, reap

                with using(f"{found['prefect']}/api"):
                    for line in [*reap(Tracking()), *crash_lost(POOL)]:
                        say(line)
        return supervisor.stop()


def _check_ports(prefect_port: int, mlflow_port: int, ray_port: int) -> None:
    ports = {
        prefect_port: "--prefect-port",
        mlflow_port: "--mlflow-port",
        ray_port: "--ray-port",
        ray_port + 1: "--ray-port (and the next one)",
    }
    if len(ports) < 4:
        raise ValueError(
            "--prefect-port, --mlflow-port, --ray-port: each needs a port of its own, the last "
            "one the next port, too"
        )
    for port, option in ports.items():
        _check_free(port, option)


def compared() -> str:
    """The address of MLflow's page that compares the runs of this MEMPO_HOME."""
    from tasks import supervisor, views
    from tasks.tracking import Tracker

    client, experiment_id = Tracker().connect()
    key = views.share(client, experiment_id)
    return views.compare_url(supervisor.mlflow_address(), experiment_id, key)


def environment() -> dict[str, str]:
    """What a command needs to use the services that run; empty where none do."""
    from tasks import supervisor

    found = supervisor.running()
    if not found:
        return {}
    return {"PREFECT_API_URL": f"{found['prefect']}/api", **_RAY_TOKEN}


# Ray reads this when it is imported; the token itself is in its own file, ~/.ray/auth_token.
_RAY_TOKEN = {"RAY_AUTH_MODE": "token"}


def _services(prefect_port: int, mlflow_port: int, ray_port: int) -> list:
    from tasks import ray_token, store
    from tasks.databases import prefect_env
    from tasks.environment import QUIET, available_cores
    from tasks.ray_cluster import OBJECT_STORE_BYTES
    from tasks.supervisor import Service, answers
    from tasks.tracking import Tracker

    ray_token.ensure()
    tracker = Tracker()
    tracker.connect()  # makes the tables, so that the server finds them whole
    prefect, mlflow = f"http://{HOST}:{prefect_port}", f"http://{HOST}:{mlflow_port}"
    api = {"PREFECT_API_URL": f"{prefect}/api"}
    python = [sys.executable, "-m"]
    return [
        Service(
            "prefect",
            [*python, "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)],
            {**QUIET, **prefect_env(), **api, "PREFECT_UI_API_URL": f"{prefect}/api"},
            prefect,
            partial(answers, f"{prefect}/api/health"),
        ),
        Service(
            "mlflow",
            [
                *(*python, "mlflow", "server", "--host", HOST, "--port", str(mlflow_port)),
                *("--workers", "1"),
                *("--default-artifact-root", (store.home() / "artifacts").as_uri()),
            ],
            # Nothing here gives it jobs, and their runners outlive a SIGTERM.
            {
                **QUIET,
                "MLFLOW_BACKEND_STORE_URI": tracker.uri,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            mlflow,
            partial(answers, f"{mlflow}/health"),
        ),
        Service(
            "ray",
            [
                *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"),
                *("--node-ip-address", HOST, "--port", str(ray_port)),
                *("--ray-client-server-port", str(ray_port + 1), "--include-dashboard=false"),
                *("--num-cpus", str(available_cores()), "--disable-usage-stats"),
                *("--object-store-memory", str(OBJECT_STORE_BYTES)),
            ],
            {
                **QUIET,
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it listens on all interfaces
                "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # of Ray Serve; else 30 s at its end
                **_RAY_TOKEN,
            },
            f"{HOST}:{ray_port}",
            partial(_listens, ray_port),
        ),
        Service(
            "worker",
            [sys.executable, *WORKER],
            {**QUIET, **api, **_RAY_TOKEN, **WORKER_ENV},
            f"work pool {POOL}",
            partial(_works, f"{prefect}/api/work_pools/{POOL}/workers/filter"),
            after=f"{prefect}/api/health",
        ),
    ]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((HOST, port)) == 0


def _works(url: str) -> bool:
    """Whether a worker of the pool has shown a sign of life."""
    try:
        found = httpx.post(url, json={}, timeout=5.0)
    except httpx.TransportError:
        return False
    workers = found.json() if found.status_code == 200 else []
    return any(worker["status"] == "ONLINE" for worker in workers)


def _check_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if port < 1:
                raise OverflowError("ports are 1 to 65535")
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{option} {port}: cannot be used ({error}); give another") from None
