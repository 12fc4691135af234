"""One Ray per process: a local one, or the one at `cluster.address`.

connect_ray(cluster, env)
try:
    ...  # flows whose task runner finds Ray connected and uses it
finally:
    shutdown_ray()
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mempo.config import Cluster
from tasks.environment import available_cores, worker_env
from tasks.ray_address import LOCAL_HOSTS, check_ray, same_ray, split_address

NAMESPACE = "mempo"
OBJECT_STORE_BYTES = 256 * 2**20  # between tasks go paths, so the store holds little


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
        _stay_on_loopback(True)
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
    _stay_on_loopback(_on_loopback(cluster.address))
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


def _stay_on_loopback(only: bool) -> None:
    """Whether Ray's processes listen on 127.0.0.1 only; by default they do on all interfaces.

    Ray decides by a switch that it reads when it is imported, so the value is set, too; what it
    starts reads the variable.
    """
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0" if only else "1"
    ray_constants.ENABLE_RAY_CLUSTER = not only


def _on_loopback(address: str) -> bool:
    """Whether the head at `address` is on this machine and listens on its loopback alone."""
    host, port, is_client = split_address(address)
    if is_client or host not in LOCAL_HOSTS:
        return False
    import ray

    _stay_on_loopback(False)  # or the loopback itself is told for this node's address
    try:
        with socket.create_connection((ray.util.get_node_ip_address(), port), timeout=2.0):
            return False
    except OSError:
        return True


def shutdown_ray() -> None:
    """Leave Ray; a local one ends. Harmless where none is connected."""
    import ray

    ray.shutdown()
    _stay_on_loopback(False)
