"""Runs of processes that are gone: closed in MLflow, and in Prefect where it thinks they go on."""

from __future__ import annotations

from uuid import UUID

from mempo.config import Tracking
from tasks.tracking import Tracker


def reap(tracking: Tracking) -> list[str]:
    """Close what dead processes left open; a line for each run.

    Prefect learns of it where its server is configured: a server of a command's own ends with the
    command, and the next one's marks late runs by itself.
    """
    tracker = Tracker(tracking.uri, tracking.experiment)
    lines = []
    for run_id in tracker.reap():
        lines.append(f"run {run_id} of a process that is gone was closed as KILLED")
        if flow_run_id := tracker.run_info(run_id).tags.get("prefect.flow_run_id"):
            crash(flow_run_id, "its process is gone")
    return lines


def crash_lost(pool: str) -> list[str]:
    """Mark flow runs of this machine's own work pool whose process is gone; a line for each.

    Without it they would hold the pool's slots for ever. To be called where no worker of the pool
    is about to start a process.
    """
    import psutil
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        WorkPoolFilter,
        WorkPoolFilterName,
    )
    from prefect.client.schemas.objects import StateType

    living: set[str] = set()
    for process in psutil.process_iter():
        try:
            living.add(process.environ().get("PREFECT__FLOW_RUN_ID", ""))
        except psutil.Error:  # it ended meanwhile, or is of another user
            continue
    begun = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=begun))
            ),
        )
    lost = [run for run in found if str(run.id) not in living]
    for run in lost:
        crash(str(run.id), "its process is gone")
    return [
        f"flow run {run.name!r} of a process that is gone was closed as Crashed" for run in lost
    ]


def crash(flow_run_id: str, reason: str) -> None:
    """Mark a flow run, where the configured Prefect server has it, as crashed unless it is over."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    from tasks.prefect_server import configured_prefect_url

    if not configured_prefect_url():
        return
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:  # of another server
            return
        if run.state is not None and not run.state.is_final():
            client.set_flow_run_state(run.id, Crashed(message=reason), force=True)
