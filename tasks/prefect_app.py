"""The Prefect server of one command, as a process: `python -m tasks.prefect_app PORT`.

It ends when its standard input does, which happens however its parent ends, a SIGKILL included.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import uvicorn


def main(port: int) -> None:
    """Serve Prefect's API on 127.0.0.1 until SIGTERM or the end of standard input."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        timeout_graceful_shutdown=3,
    )


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by this thread, would abort an interpreter that ends.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]))
