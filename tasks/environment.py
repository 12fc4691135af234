"""The environment of processes that compute: quiet, a fair share of threads, modules found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mempo.config import Cluster
from tasks.secrets import is_secret

# Quiet, and nothing is sent to anybody.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "VLLM_NO_USAGE_STATS": "1",
}


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
