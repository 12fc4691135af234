"""Ctrl-C, SIGTERM and a cancelled flow end a run in good order, wherever it is just then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from flows.progress import say
from tasks import placement

P = ParamSpec("P")
T = TypeVar("T")


def stoppable(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call that a thread of its own makes, while the main one waits for signals.

    A signal raises in the main thread, wherever that is. In the middle of a transaction it would
    leave SQLite locked against the write that closes the run; from a serialiser or Ray it would
    come out as another exception, and from a finaliser not at all. So the call itself is never
    interrupted: its actors are killed, and where it next waits for one it gets a KeyboardInterrupt.
    Further signals change nothing.
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
        if not made.cancel() and not made.done():  # it has begun: it closes what it opened
            with placement.stopped():
                while not made.done():
                    with suppress(BaseException):  # whoever presses Ctrl-C again
                        say("stopping: the run is being closed")
                        wait([made])
        raise
