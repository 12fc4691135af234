import time

import pytest

from tasks import system_metrics
from tasks.system_metrics import sampler, watched
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other.
pytestmark = pytest.mark.filterwarnings("default")


def test_a_sample_has_the_names_of_mlflow_and_finite_numbers(tmp_path):
    found = sampler(tmp_path)()
    assert all(value >= 0 for value in found.values())
    assert {
        "system/cpu_utilization_percentage",
        "system/system_memory_usage_megabytes",
        "system/system_memory_usage_percentage",
        "system/disk_usage_percentage",
        "system/disk_usage_megabytes",
        "system/disk_available_megabytes",
    } <= found.keys()


def test_the_load_lands_in_the_named_run_while_the_block_runs(tmp_path):
    tracker = Tracker(home=str(tmp_path))
    run_id, other = (tracker.start(name=n, kind="train", params={}, tags={}) for n in "ab")
    with watched(tracker, run_id, every_s=0.05):
        time.sleep(1)
    time.sleep(0.3)
    history = tracker.metric_history(run_id, "system/cpu_utilization_percentage")
    time.sleep(0.3)
    assert len(history) > 1
    assert len(tracker.metric_history(run_id, "system/cpu_utilization_percentage")) == len(history)
    assert {0, 1} & {point.step for point in history}
    assert tracker.run_info(other).metrics == {}


def test_an_outage_is_neither_raised_nor_waited_for(tmp_path, monkeypatch, capfd):
    tracker = Tracker("http://127.0.0.1:9", home=str(tmp_path))

    def hangs(self: Tracker, run_id: str) -> None:
        time.sleep(5)

    for broken in (hangs, None):
        if broken:
            monkeypatch.setattr(Tracker, "run_info", broken)
        else:
            monkeypatch.undo()
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        begin = time.monotonic()
        with watched(tracker, "run", every_s=0.01):
            pass
        assert time.monotonic() - begin < 2


def test_a_server_that_comes_back_gets_points_again(tmp_path, monkeypatch):
    tracker = Tracker(home=str(tmp_path))
    run_id = tracker.start(name="r", kind="train", params={}, tags={})
    real, calls = Tracker.connect, []

    def flaky(self: Tracker):
        calls.append(1)
        if 1 < len(calls) < 4:  # the first asks for the run's start
            raise OSError("no route to host")
        return real(self)

    monkeypatch.setattr(Tracker, "connect", flaky)
    with watched(tracker, run_id, every_s=0.05):
        time.sleep(1)
    monkeypatch.undo()
    assert tracker.metric_history(run_id, "system/disk_usage_percentage") and len(calls) > 4


@pytest.mark.parametrize(
    ("given", "expected"), [("2.5", 2.5), ("soon", system_metrics.EVERY_S), ("", 15.0)]
)
def test_the_interval_is_that_of_mlflow(monkeypatch, given, expected):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", given)
    assert system_metrics._default() == expected


def test_it_can_be_turned_off(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    monkeypatch.setattr(system_metrics, "_watch", lambda *_: pytest.fail("it watches"))
    with watched(Tracker("http://127.0.0.1:9", home=str(tmp_path)), "run"):
        pass
