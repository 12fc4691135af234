"""Processes: whether the one that owns a run still lives, and how several are ended.

Process ids are reused, so they alone do not tell.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def birth(pid: int) -> str:
    """Where and when a process was born: 'place/start', or '' where no such process runs.

    On Linux the place is the kernel's boot id and the namespace of process ids, because two
    containers may share a host name but not see each other's processes. A zombie has ended: it
    only waits for its parent to ask.
    """
    if not Path("/proc/self/stat").exists():
        shown = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return f"/{shown.stdout.strip()}" if shown.stdout.strip() else ""
    try:
        # The command's name, in brackets, may hold spaces: count the fields from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else f"{_place()}/{start}"


def alive(host_name: str, pid: str, born: str) -> bool | None:
    """Whether the process still runs; None where that cannot be seen from here."""
    place = born.rpartition("/")[0]
    if host_name != host() or not pid.isdigit() or not born or place != _place():
        return None
    return birth(int(pid)) == born


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def end(ending: Sequence[Any], patience_s: float, first: Any = None) -> None:
    """SIGTERM to `first`, or all, and SIGKILL to all that live on after `patience_s`."""
    import psutil

    for process in ending if first is None else [first]:
        _unless_ended(process.terminate)
    _, left = psutil.wait_procs(ending, timeout=patience_s)
    for process in left:
        _unless_ended(process.kill)
    psutil.wait_procs(left, timeout=5)


def _unless_ended(act: Callable[[], None]) -> None:
    """Act on a process that may have ended meanwhile."""
    import psutil

    try:
        act()
    except psutil.NoSuchProcess:
        return


def release_memory() -> None:
    """Give freed memory back to the system (glibc; elsewhere nothing happens).

    Actors keep what they free, because page faults are dear (`worker_env`); with tensors of ever
    other sizes that grows by gigabytes. Between stages it is handed back.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return
