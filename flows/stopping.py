"""Ctrl-C, SIGTERM and a cancelled flow end a run in good order, wherever it is just then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from tasks import placement

P = ParamSpec("P")
T = TypeVar("T")


def stoppable(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call that a thread of its own makes, while the main one waits for signals.

    A signal raises in the main thread, wherever that is. In the middle of a transaction this left
    SQLite locked against the write that closes the run; from a serialiser or Ray it came out as
    another exception, and from a finaliser not at all. So the call itself is never interrupted:
    its actors are killed, and where it next waits for one it gets a KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():  # a sub-flow: its parent's wait
        return call(*args, **kwargs)
    context, made = copy_context(), Future[T]()

    def make() -> None:
        if made.set_running_or_notify_cancel():
            try:
                made.set_result(context.run(call, *args, **kwargs))
            except BaseException as error:  # the caller's, whatever it is
                made.set_exception(error)

    try:
        threading.Thread(target=make, name="flow").start()
        return made.result()
    except BaseException:
        if not made.cancel():  # it has begun: it closes what it opened
            with placement.stopped():
                wait([made])
        raise
