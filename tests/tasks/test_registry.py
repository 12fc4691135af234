import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

from tasks.registry import register
from tasks.tracking import Tracker

# MLflow, SQLAlchemy and the server warn about each other.
pytestmark = pytest.mark.filterwarnings("default")


class Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


@pytest.fixture(params=["database", "server"])
def tracker(request, tmp_path: Path, monkeypatch) -> Iterator[Tracker]:
    """On SQLite, and over HTTP on MLflow's own REST server."""
    # A server in this process would make its registry that of all later clients.
    monkeypatch.setattr("mlflow.tracking._model_registry.utils._registry_uri", None)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "")
    local = Tracker(home=str(tmp_path / "server"))
    local.connect()  # makes the database
    if request.param == "database":
        yield local
        return
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", local.uri)
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", (tmp_path / "artifacts").as_uri())
    import mlflow.server.handlers as handlers
    from mlflow.server import app

    monkeypatch.setattr(handlers, "_tracking_store", None)
    monkeypatch.setattr(handlers, "_model_registry_store", None)
    web = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield Tracker(f"http://127.0.0.1:{web.server_port}", home=str(tmp_path / "client"))
    web.shutdown()
    thread.join()
    web.server_close()


def trained(tracker: Tracker, folder: Path, steps: int = 3) -> str:
    """A run with a checkpoint after each step."""
    run_id = tracker.start(name="r", kind="train", params={}, tags={})
    for step in range(1, steps + 1):
        (folder / str(step)).mkdir(parents=True, exist_ok=True)
        (folder / str(step) / "w.bin").write_bytes(b"%d" % step)
        tracker.log_checkpoint(run_id, folder / str(step), step=step, metrics={})
    return run_id


def test_the_best_checkpoint_is_registered_and_called_by_its_alias(tracker, tmp_path):
    run_id = trained(tracker, tmp_path)
    client, experiment_id = tracker.connect()
    tracker.mark_best(run_id, 1)
    tracker.mark_best(run_id, 2)
    tags = {
        model.params["step"]: model.tags.get("mempo.best")
        for model in client.search_logged_models([experiment_id])
    }
    assert tags == {"1": "false", "2": "true", "3": None}

    assert register(tracker, run_id, "memory", "champion") == "1"
    assert register(tracker, run_id, "memory", "champion") == "1"  # once is enough
    version = client.get_model_version_by_alias("memory", "champion")
    assert version.run_id == run_id
    assert version.tags["mempo.uri"] == (tmp_path / "2").as_uri()
    assert version.tags["mempo.step"] == "2" and len(version.tags["mempo.sha256"]) == 64
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    assert model.params["step"] == "2"

    tracker.mark_best(run_id, 3)
    assert register(tracker, run_id, "memory", "champion") == "2"
    assert str(client.get_model_version_by_alias("memory", "champion").version) == "2"


def test_without_a_best_the_last_that_is_not_deleted_is_taken(tracker, tmp_path):
    run_id = trained(tracker, tmp_path)
    tracker.drop_checkpoint(run_id, 3)
    register(tracker, run_id, "memory", "candidate")
    version = tracker.connect()[0].get_model_version_by_alias("memory", "candidate")
    assert version.tags["mempo.step"] == "2"


def test_what_cannot_be_registered_is_refused_in_one_line(tracker, tmp_path):
    with pytest.raises(ValueError, match="has no checkpoint in MLflow"):
        register(tracker, trained(tracker, tmp_path, steps=0), "memory", "best")
    run_id = trained(tracker, tmp_path, steps=1)
    for name, alias in (("a/b", "best"), ("memory", "v1"), ("memory", "a b")):
        with pytest.raises(ValueError, match=f"cannot register run {run_id}") as error:
            register(tracker, run_id, name, alias)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [{"step": "three"}, {"uri": ""}, {"sha256": None}])
def test_a_damaged_record_of_a_checkpoint_is_named_and_no_version_made(tracker, tmp_path, damage):
    run_id = trained(tracker, tmp_path, steps=1)
    client, experiment_id = tracker.connect()
    whole = {"step": "9", "uri": "file:///x", "sha256": "0", "bytes": "1", **damage}
    params = {key: value for key, value in whole.items() if value is not None}
    bad = client.create_logged_model(experiment_id, "bad", run_id, params=params)
    client.finalize_logged_model(bad.model_id, "READY")
    ((key, value),) = damage.items()
    fault = f"run {run_id}: MLflow's record of its checkpoint {bad.model_id} is damaged"
    with pytest.raises(ValueError, match=fault) as error:
        register(tracker, run_id, "memory", "best")
    assert f"'{key}' is {value!r}" in str(error.value) and "\n" not in str(error.value)
    assert not client.search_registered_models()
    client.delete_logged_model(bad.model_id)  # the cure that it names
    assert register(tracker, run_id, "memory", "best") == "1"


def test_a_server_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"no use of MLflow at http://127.0.0.1:9"):
        register(Tracker("http://127.0.0.1:9", home=str(tmp_path)), "r", "memory", "best")
