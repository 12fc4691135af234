"""Lines of progress for a person at a terminal."""

from __future__ import annotations

import sys
import threading
import time

_lock = threading.Lock()
_start = time.monotonic()


def say(line: str, label: str = "") -> None:
    """Print one line with the minutes since the start; safe from several threads."""
    seconds = int(time.monotonic() - _start)
    prefix = f"[{seconds // 60:3d}:{seconds % 60:02d}] "
    with _lock:
        print(prefix + (f"{label}: " if label else "") + line, file=sys.stderr, flush=True)
