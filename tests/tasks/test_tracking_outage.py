"""FAULTS 43 against MLflow's own REST server, with a switch in front of it."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

from tasks.tracking import Tracker

# MLflow, SQLAlchemy and the server warn about each other.
pytestmark = pytest.mark.filterwarnings("default")


class Switch:
    """'ok' passes requests on, 'down' answers 500, 'deaf' does the work and then answers 500."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.mode = "ok"

    def __call__(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        if self.mode == "ok":
            return self.app(environ, respond)
        if self.mode == "deaf":
            list(self.app(environ, lambda *_: None))
        respond("500 Internal Server Error", [("Content-Type", "text/plain")])
        return [b"out of order"]


class Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


class Server(NamedTuple):
    uri: str
    switch: Switch


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    Tracker(home=str(tmp_path)).connect()  # makes the database
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", (tmp_path / "artifacts").as_uri())
    from mlflow.server import app

    switch = Switch(app)
    web = make_server("127.0.0.1", 0, switch, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield Server(f"http://127.0.0.1:{web.server_port}", switch)
    web.shutdown()
    thread.join()
    web.server_close()


def test_fault_43_an_outage_of_the_server_stops_nothing_and_loses_nothing(server, tmp_path, caplog):
    home = tmp_path / "elsewhere"
    tracker = Tracker(server.uri, "outage", str(home))
    run_id = tracker.start(name="r", kind="train", params={"a": 1}, tags={})
    (home / "weights").mkdir()
    (home / "weights" / "w.bin").write_bytes(b"1")
    (home / "page.html").write_text("<p>")
    tracker.log_metrics(run_id, {"reward/mean": 0.0}, 0)

    def history(key: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in tracker.metric_history(run_id, key)]

    with caplog.at_level(logging.WARNING, logger="tasks.tracking"):
        server.switch.mode = "down"
        for step in (1, 2):
            tracker.log_metrics(run_id, {"reward/mean": float(step), "loss/kl": 0.5}, step)
        assert tracker.log_checkpoint(run_id, home / "weights", step=2, metrics={}) is None
        tracker.log_artifact(run_id, home / "page.html")
        assert tracker.log_traces(run_id, [], decode=str) == []
        assert tracker.reap() == [] and not tracker.flush(run_id)
        server.switch.mode = "deaf"
        tracker.log_metrics(run_id, {"reward/mean": 3.0}, 3)
        warned = [record for record in caplog.records if "does not answer" in record.message]
        assert len(warned) == 1
        server.switch.mode = "ok"
        tracker.log_metrics(run_id, {"reward/mean": 4.0}, 4)
        assert any("answers again" in record.message for record in caplog.records)
    assert history("reward/mean") == [(step, float(step)) for step in range(5)]
    assert history("loss/kl") == [(1, 0.5), (2, 0.5)]
    client, _ = tracker.connect()
    assert [file.path for file in client.list_artifacts(run_id)] == ["page.html"]
    outputs = client.get_run(run_id).outputs
    assert outputs is not None and len(outputs.model_outputs) == 1


def test_fault_43_a_run_that_ends_in_an_outage_is_closed_by_the_next_flush(server, tmp_path):
    tracker = Tracker(server.uri, "outage", str(tmp_path / "elsewhere"))
    run_id = tracker.start(name="r", kind="train", params={}, tags={})
    server.switch.mode = "down"
    tracker.finish(run_id, "FINISHED")
    server.switch.mode = "ok"
    assert tracker.run_info(run_id).status == "RUNNING"
    assert tracker.flush(run_id)
    assert tracker.run_info(run_id).status == "FINISHED"
