"""Ctrl-C and SIGTERM reach what they are to stop, wherever the main thread is when they come."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.exceptions import TerminationSignal

AGAIN_S = 0.05  # after which a signal that was lost is sent again


@contextmanager
def heard() -> Iterator[None]:
    """A block that a signal ends, with the exception of its handler and no other.

    Ray makes a SystemError of what a handler raises while it waits. And Python drops an exception
    that comes up in a finaliser or the callback of a weak reference, so that a run that was asked
    once to end would go on: there the signal is sent again.
    """
    main = threading.current_thread() is threading.main_thread()  # the only one that signals reach
    before = sys.unraisablehook
    if main:
        sys.unraisablehook = lambda dropped: before(dropped) if not _again(dropped) else None
    try:
        yield
    except SystemError as error:
        stop = error.__cause__ or error.__context__
        if stop is None or isinstance(stop, Exception):
            raise
        raise stop from None
    finally:
        if main:
            sys.unraisablehook = before


def _again(dropped: sys.UnraisableHookArgs) -> bool:
    match dropped.exc_value:
        case TerminationSignal(signal=number):
            pass
        case KeyboardInterrupt():
            number = signal.SIGINT
        case _:
            return False
    # Not here and now: in this hook its exception would be dropped as well.
    threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()
    return True
