"""Peak memory of a command and of everything it starts (Linux).

    python infra/peak_memory.py mempo ablate demo

Counts proportional set sizes, so that pages which processes share count once. A process belongs
to the command if it inherited a mark in its environment, however it was started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

EVERY_S = 2.0


def marked_bytes(mark: bytes) -> int:
    """Bytes held now by all processes with `mark` in their environment."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (process / "environ").read_bytes():
                continue
            lines = (process / "smaps_rollup").read_text().splitlines()
        except (OSError, ProcessLookupError):
            continue  # it has ended meanwhile, or is not ours
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def main(command: list[str]) -> int:
    """Run `command`, print its peak and its duration; its exit status."""
    mark = uuid.uuid4().hex
    started = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "MEMPO_MEASURED": mark})
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(EVERY_S):
            peak = max(peak, marked_bytes(mark.encode()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        status = process.wait()
    finally:
        ended.set()
        watcher.join()
    minutes = (time.monotonic() - started) / 60
    print(f"peak memory {peak / 2**30:.2f} GiB, {minutes:.1f} minutes, exit status {status}")
    return status


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
