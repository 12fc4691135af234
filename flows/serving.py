"""`mempo serve`: the deployments on this machine, and a worker that runs what is started there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.deploy import deploy
from flows.progress import say

POOL = "mempo"  # the work pool of this machine


def serve(cluster: str, overrides: Sequence[str], limit: int, schedules: Path) -> None:
    """Deploy to this machine's own work pool and become its worker; does not return.

    Raises:
        ValueError: no Prefect server is configured, or it does not answer; or a schedule is wrong.
    """
    from tasks.prefect_server import check_prefect, configured_prefect_url

    url = configured_prefect_url()
    if not url:
        raise ValueError(
            "PREFECT_API_URL: not set, and deployments live on a server; `mempo up` starts one "
            "with all of this, or set it to yours"
        )
    check_prefect(url)
    offer(cluster, overrides, limit, schedules)
    say(f"worker: takes runs of work pool {POOL}, {limit} at a time; Ctrl-C ends it")
    os.environ |= WORKER_ENV
    # A background job of a script ignores SIGINT, which Prefect's worker sends itself to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *WORKER])


WORKER = ["-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
WORKER_ENV = {"PREFECT_WORKER_QUERY_SECONDS": "2"}  # a person waits for the start


def offer(cluster: str, overrides: Sequence[str], limit: int, schedules: Path) -> None:
    """Put all deployments on the configured server, for this machine's work pool.

    Runs of the pool whose process is gone are closed first: they would hold its slots.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists

    from tasks.reaping import crash_lost

    with get_client(sync_client=True) as client:
        # The pool's own limit, since the worker's crashes where a suspended run comes back early.
        try:
            pool = WorkPoolCreate(name=POOL, type="process", concurrency_limit=limit)
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=limit))
    for line in crash_lost(POOL):
        say(line)
    for line in deploy(POOL, cluster=cluster, overrides=overrides, schedules=schedules):
        say(line)
