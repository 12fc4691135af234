"""Which process owns a run: its tags, whether it lives, and closing the runs of those that died."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import journal, processes, store
from tasks.connection import OUTAGE
from tasks.delivery import HEARTBEAT
from tasks.records import RunInfo

if TYPE_CHECKING:
    from tasks.tracking import Tracker

STALE_S = 6 * 3600.0  # several stages of the longest time-out fit in


def owner_tags() -> dict[str, str]:
    """The tags that say which process owns a run, and that it was alive just now."""
    pid = os.getpid()
    return {
        "mempo.host": processes.host(),
        "mempo.pid": str(pid),
        "mempo.pid_started": processes.birth(pid),
        HEARTBEAT: str(int(time.time())),
    }


def owner_gone(tags: Mapping[str, str], last_sign: float, stale_s: float) -> str:
    """Why the owner of a run must be dead, or '' where it lives or may live.

    Its own machine knows its processes; from elsewhere only silence tells: `last_sign` is the
    time of the last sign of life, in seconds since 1970, and `stale_s` how old it may be.
    """
    host, pid = tags.get("mempo.host", ""), tags.get("mempo.pid", "")
    lives = processes.alive(host, pid, tags.get("mempo.pid_started", ""))
    if lives is None and time.time() - last_sign > stale_s:
        return f"no sign of life from process {pid} on {host} for {stale_s / 3600:g} hours"
    return f"process {pid} on {host} is gone" if lives is False else ""


def gone(run: RunInfo, home: Path, stale_s: float = STALE_S) -> str:
    """Why the process that owned the run must be dead, or ''; `home` has the run's journal."""
    if "mempo.pid" not in run.tags:
        return ""
    beat = float(run.tags.get(HEARTBEAT, run.start))
    last_sign = max(beat, journal.touched(store.run_folder(run.run_id, home)))
    return owner_gone(run.tags, last_sign, stale_s)


def check_idle(run: RunInfo, home: Path, stale_s: float = STALE_S) -> None:
    """Raise a ValueError if the run goes on in a process that lives, or may live."""
    if run.status == "RUNNING" and not gone(run, home, stale_s):
        pid, host = run.tags.get("mempo.pid", "?"), run.tags.get("mempo.host", "?")
        raise ValueError(
            f"the run {run.run_id} still goes on, in process {pid} on {host}; stop that first"
        )


def reap(tracker: Tracker, stale_s: float) -> list[str]:
    """What `Tracker.reap` does."""
    closed = []
    try:
        running = tracker.find(status="RUNNING")
    except (*OUTAGE, ValueError) as error:
        tracker.report(error)
        return []
    for run in running:
        reason = gone(run, Path(tracker.home), stale_s)
        # What the dead run could not send may hold its real end.
        if (
            reason
            and tracker.flush(run.run_id)
            and tracker.run_info(run.run_id).status == "RUNNING"
        ):
            tracker.finish(run.run_id, "KILLED", reason)
            closed.append(run.run_id)
    return closed
