"""A signal ends what runs in good order, wherever it finds it."""

import os
import signal
import threading
import time
from contextvars import ContextVar

import pytest
from prefect.exceptions import TerminationSignal

from flows.stopping import stoppable
from tasks import placement

colour: ContextVar[str] = ContextVar("colour")


def terminate(number, _):
    raise TerminationSignal(signal=number)


@pytest.fixture
def prefects_handler():
    """SIGTERM as Prefect hears it while a flow runs."""
    before = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminationSignal)],
)
def test_a_signal_tears_nothing_apart_and_ends_what_waits_for_a_model(
    prefects_handler, number, error
):
    happened = []

    def run():
        try:
            os.kill(os.getpid(), number)
            time.sleep(0.3)
            happened.append("written")  # as to a database
            while True:
                placement.check_stop()
                time.sleep(0.01)
        except KeyboardInterrupt:
            happened.append("closed")
            raise

    with pytest.raises(error):
        stoppable(run)
    assert happened == ["written", "closed"]
    placement.check_stop()  # the next run is not stopped


def test_further_signals_do_not_cut_short_what_closes_a_run(prefects_handler):
    happened = []

    def run():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                placement.check_stop()
                time.sleep(0.01)
        finally:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
            happened.append("closed")

    with pytest.raises(KeyboardInterrupt):
        stoppable(run)
    assert happened == ["closed"]
    placement.check_stop()


def test_a_signal_before_the_thread_has_begun_starts_nothing(monkeypatch):
    started = []

    class Late(threading.Thread):
        def start(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)  # interrupted

    monkeypatch.setattr("flows.stopping.threading.Thread", Late)
    with pytest.raises(KeyboardInterrupt):
        stoppable(lambda: started.append("run"))
    assert not started
    placement.check_stop()


def test_an_error_of_a_call_stops_nothing_else(monkeypatch):
    def never():
        raise AssertionError("the actors of other runs would be killed")

    monkeypatch.setattr(placement, "stopped", never)
    with pytest.raises(ValueError, match="my own"):
        stoppable(int, "my own")


def test_results_errors_and_the_context_pass_through():
    colour.set("red")
    assert stoppable(lambda a, *, b: (colour.get(), a, b), 1, b=2) == ("red", 1, 2)
    with pytest.raises(ValueError, match="my own"):
        stoppable(int, "my own")


def test_sub_flows_run_in_the_threads_that_they_are_in():
    ran = []
    run = threading.Thread(target=lambda: stoppable(lambda: ran.append(threading.current_thread())))
    run.start()
    run.join()
    assert ran == [run]


def test_a_study_that_is_stopped_inside_stops_its_own_runs_first():
    """`stopped` in a thread whose run is being stopped does not let the others go on."""
    with placement.stopped():
        with placement.stopped():
            pass
        with pytest.raises(KeyboardInterrupt):
            placement.check_stop()
    placement.check_stop()
