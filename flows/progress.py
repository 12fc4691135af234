"""Lines of progress for a person at a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

_lock = threading.Lock()
_start = time.monotonic()


def say(line: str, label: str = "") -> None:
    """Print one line with the minutes since the start; safe from several threads."""
    seconds = int(time.monotonic() - _start)
    prefix = f"[{seconds // 60:3d}:{seconds % 60:02d}] "
    text = (f"{label}: " if label else "") + line
    with _lock:
        print(prefix + text, file=sys.stderr, flush=True)
    _log(text)


def _log(text: str) -> None:
    """The line in the flow run's own log, which Prefect's page shows."""
    context = sys.modules.get("prefect.context")  # slow to import, and no flow runs without it
    if context is not None and context.FlowRunContext.get() is not None:
        from prefect.logging import get_run_logger

        get_run_logger().info(text)


def warn_cut_off(share: float, what: str, label: str = "") -> None:
    """Say it where more than half of the trajectories `what` ran out of tokens."""
    if share > 0.5:
        say(
            f"warning: {share:.0%} of the {what} were cut off; raise rollout.max_step_tokens or "
            "rollout.max_prompt_tokens",
            label,
        )


class Countdown:
    """How many of several runs are over, and roughly how long the rest takes.

    `work`: what each run has to do, by name, in any unit; the time that is left follows from what
    the work that is over has taken, so it also counts that runs go on side by side. `what` people
    call the runs.
    """

    def __init__(self, work: Mapping[str, float], what: str = "runs"):
        self._work, self._what = dict(work), what
        self._total = len(work)
        self._over = 0.0
        self._begin = time.monotonic()

    def settle(self, name: str, *, cost_time: bool = True) -> str:
        """Count a run as over; what a person wants to know then."""
        work = self._work.pop(name)
        self._over += work if cost_time else 0.0
        over = self._total - len(self._work)
        line = f"{over} of {self._total} {self._what} are over"
        if self._work and self._over:
            passed = time.monotonic() - self._begin
            left = passed * sum(self._work.values()) / self._over
            line += f" after {duration(passed)}, about {duration(left)} left"
        return line


def duration(seconds: float) -> str:
    """'40 s', '12 min' or '3.5 h'."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
