"""What surrounds each command of a shell: environment, errors in one line, exit statuses."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from mempo.config.addresses import redacted
from mempo.policies.shipped import BUILTIN

DEBUG = "MEMPO_DEBUG"
PATIENCE_S = 10.0


@contextmanager
def command() -> Iterator[None]:
    """Around each command: a quiet environment; what ends it early as one line and a status.

    SIGTERM ends it as Ctrl-C does, so that runs are closed and nothing is left behind. Others that
    follow within PATIENCE_S are passed over: they would cut that closing short.
    """
    _be_quiet()
    last = -PATIENCE_S

    def stop(*_: object) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE_S:
            last = time.monotonic()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        complain("stopped")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever reads has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except Exception as error:  # the edge: nobody is left above to tell the user
        if os.environ.get(DEBUG) == "1":
            traceback.print_exc()
        if isinstance(error, ValueError) and not _in_flow(error):
            complain(str(error))
            raise typer.Exit(2) from error
        complain(f"{type(error).__name__}: {error}")
        seen = "`mempo up` shows the run and its record; " if _in_flow(error) else ""
        complain(f"{seen}{DEBUG}=1 shows the traceback")
        raise typer.Exit(1) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stay_offline(*models: str) -> None:
    """Where all models are local nothing has to be asked of the hub. "" is no model."""
    if all(m in ("", "tiny") or m.startswith(BUILTIN) or Path(m).is_dir() for m in models):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def complain(text: str) -> None:
    """One line on stderr, whatever line breaks the text has, without passwords."""
    print(f"mempo: {' '.join(redacted(text).split())}", file=sys.stderr)


def _be_quiet() -> None:
    """Defaults of the environment, for this process and those it starts; nothing phones home."""
    from flows.up import environment
    from tasks.environment import QUIET

    defaults = {
        **QUIET,
        **environment(),
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    if os.environ.get(DEBUG) != "1":
        # A flow's failure is told in one line here; Prefect's own log keeps all of it.
        defaults["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _in_flow(error: BaseException) -> bool:
    """Whether a flow was running: then the error has passed through Prefect's engine."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == "prefect.flow_engine" for frame, _ in frames)
