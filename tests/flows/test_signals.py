"""A signal ends a run wherever it finds it."""

import os
import signal
import sys
import time
import weakref

import pytest
from prefect.exceptions import TerminationSignal

from flows.signals import heard


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_a_signal_that_ray_wraps_is_no_failure(stop):
    with pytest.raises(type(stop)) as raised, heard():
        try:
            raise stop
        except BaseException as cause:
            raise SystemError("returned a result with an exception set") from cause
    assert raised.value is stop
    with pytest.raises(SystemError), heard():
        raise SystemError("a real one")


def terminate(number, _):
    raise TerminationSignal(signal=number)


@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, terminate, TerminationSignal),
    ],
)
def test_a_signal_that_comes_where_python_drops_it_is_heard(number, handler, error):
    class Mortal:
        pass

    def collected(_):
        os.kill(os.getpid(), number)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(error), heard():
            mortal = Mortal()
            kept = weakref.ref(mortal, collected)
            del mortal  # the handler's exception comes up in the callback
            assert kept() is None
            time.sleep(5)
    finally:
        signal.signal(number, before)


def test_other_exceptions_that_python_drops_are_shown_as_before(monkeypatch):
    class Broken:
        def __del__(self):
            raise ValueError("in a finaliser")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: shown.append(dropped.exc_value))
    hook = sys.unraisablehook
    with heard():
        broken = Broken()
        del broken
    assert [str(error) for error in shown] == ["in a finaliser"]
    assert sys.unraisablehook is hook
