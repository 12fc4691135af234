"""The services around a run: one Prefect server per command, one Ray, and how many threads.

with prefect_server():
    connect_ray(cluster, env)
    try:
        ...  # flows whose RayTaskRunner finds Ray connected and uses it
    finally:
        shutdown_ray()
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx

from mempo.config import Cluster
from tasks import store
from tasks.ray_address import check_ray, same_ray
from tasks.secrets import is_secret

NAMESPACE = "mempo"
OBJECT_STORE_BYTES = 256 * 2**20  # between tasks go paths, so the store holds little

_HEALTH_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 300.0  # migrations of a fresh database on a busy machine

# Quiet, and nothing is sent to anybody.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "VLLM_NO_USAGE_STATS": "1",
}


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
        with _api_url(url):
            yield url
        return
    with _started(say) as url, _api_url(url):
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


def worker_env(cluster: Cluster) -> dict[str, str]:
    """Environment of every Ray worker: addresses, threads, an allocator that keeps its pages.

    Workers of a local Ray search modules where this process does; those of another Ray, on
    machines with folders of their own, where that Ray was started to.
    """
    threads = str(pick_threads(cluster))
    env = {
        **QUIET,
        # A worker may be stopped right after its last line; Prefect would wait two seconds.
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # Threads that wait must sleep: where cores are shared, spinning ones cost a factor of ten.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Without these glibc returns freed tensors to the system and faults them in again.
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**32),
        "MALLOC_TOP_PAD_": str(2**26),
    }
    passed_on = ("PREFECT_", "MLFLOW_", "MEMPO_", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    env |= {
        name: value
        for name, value in os.environ.items()
        if name.startswith(passed_on) and not is_secret(name, value)  # Ray logs what it is told
    }
    if not cluster.address:  # here they find what this process finds, functions of one's own too
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))
    # An active run of the driver's shell must not adopt what a worker logs.
    env.pop("MLFLOW_RUN_ID", None)
    return env


def connect_ray(cluster: Cluster, env: Mapping[str, str] | None = None) -> str:
    """Start a local Ray, or join the one at `cluster.address`; returns the head's host:port.

    `env` adds to `worker_env` for every worker. A wrong address is an error: nothing here falls
    back on a private Ray.

    Raises:
        ValueError: `cluster.address` is malformed, 'auto' or unreachable, or is not a Ray.
        RuntimeError: this process is connected to a Ray already.
    """
    if cluster.address:
        check_ray(cluster.address)
    # Read when ray is imported: `uv run` must not make each worker build an environment.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        raise RuntimeError("this process is connected to a Ray already; call shutdown_ray() first")
    runtime_env = {"env_vars": {**worker_env(cluster), **(env or {})}}
    with _own_sigterm():
        return _connect(cluster, runtime_env)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM for itself and would exit at once: a handler that was there stays."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _connect(cluster: Cluster, runtime_env: dict[str, Any]) -> str:
    import ray

    if not cluster.address:
        # It warns that a token guards this Ray, as is its default and right.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        ray.init(
            address="local",  # never a Ray that RAY_ADDRESS or a file of an old session names
            num_cpus=cluster.cpus or available_cores(),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            namespace=NAMESPACE,
            runtime_env=runtime_env,
            logging_level=logging.WARNING,
        )
        return ray.get_runtime_context().gcs_address
    try:
        ray.init(
            address=cluster.address,
            namespace=NAMESPACE,
            runtime_env=runtime_env,
            logging_level=logging.WARNING,
        )
        joined = ray.get_runtime_context().gcs_address
    except Exception as error:
        ray.shutdown()
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"cluster.address: cannot join the Ray at {cluster.address} ({type(error).__name__}: "
            f"{reason}); host:port wants the head's GCS port (6379) and a node of the cluster, "
            "ray://host:10001 its client port; a cluster with tokens wants RAY_AUTH_TOKEN"
        ) from error
    if not same_ray(cluster.address, joined, ray.util.get_node_ip_address()):
        ray.shutdown()
        raise ValueError(
            f"cluster.address: asked for {cluster.address}, but joined {joined}; "
            "give the head's own address"
        )
    return joined


def shutdown_ray() -> None:
    """Leave Ray; a local one ends. Harmless where none is connected."""
    import ray

    ray.shutdown()


def available_cores() -> int:
    """Cores this process may use: those of its affinity mask, within its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, period = quota.read_text().split()[:2]
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    return cores


def pick_threads(cluster: Cluster) -> int:
    """Threads of one actor's computation: `cluster.threads`, or cores / parallel runs, >= 1.

    The load of the moment is not asked: the number of threads changes the last bits of sums, and
    a resumed run must get the number it had.
    """
    return cluster.threads or max(1, (cluster.cpus or available_cores()) // cluster.parallel)


@contextmanager
def _started(say: Callable[[str], None]) -> Iterator[str]:
    folder = store.home() / "prefect"
    store.check_writable(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, **QUIET, "PREFECT_HOME": str(folder)}
    env |= {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        # The ephemeral kind has no UI, scheduler or late-run watcher, and starts in half the time.
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    say("Prefect server: starting ...")
    begin = time.monotonic()
    with TemporaryFile() as output:
        # A session of its own: Ctrl-C ends the flow, which must still report to the server.
        server = subprocess.Popen(
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
            _end(server)


def _why_not(output: str, exit_code: int | None, folder: Path) -> str:
    """Why the server did not start, from its output; `exit_code` None: it is still trying."""
    if "No such revision" in output or "Can't locate revision" in output:
        return (
            f"the Prefect server did not start: {folder / 'prefect.db'} was written by a newer "
            f"Prefect than {version('prefect')}; move {folder} away (it holds Prefect's pages of "
            "earlier runs, MLflow's stay), or use an environment with that Prefect"
        )
    how = f"within {_START_TIMEOUT_S:.0f} s" if exit_code is None else f"(exit code {exit_code})"
    lines = [line for line in output.strip().splitlines() if line.strip()]
    # A crash ends with the interpreter's own lines; the last error stands above them.
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    return f"the Prefect server did not start {how}: {' | '.join((errors or lines)[-3:])}"


def _healthy(url: str, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with httpx.Client(timeout=_HEALTH_TIMEOUT_S) as client:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return True
            except httpx.TransportError:
                pass  # not listening yet
            time.sleep(0.1)
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    if server.stdin:
        server.stdin.close()


@contextmanager
def _api_url(url: str) -> Iterator[None]:
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
