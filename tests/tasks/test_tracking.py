import logging
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks import processes, store
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other when MLflow loads its tables.
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(store.__file__).parents[1]
THIRD = 1 / 3


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """One store for all tests, because making its tables takes a second or two."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def tracker(home, request) -> Tracker:
    return Tracker(experiment=request.node.name, home=str(home))


def start(tracker: Tracker, **options: Any) -> str:
    return tracker.start(**{"name": "a run", "kind": "train", "params": {}, "tags": {}, **options})


def points(tracker: Tracker, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in tracker.metric_history(run_id, key)]


def python(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_by_default_everything_lies_under_mempo_home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    tracker = Tracker()
    assert tracker.uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MEMPO_HOME", "somewhere/else")
    assert pickle.loads(pickle.dumps(tracker)).home == str(tmp_path)
    assert Tracker("http://host:5000").uri == "http://host:5000"


def test_a_run_is_recorded_with_all_its_params_and_tags(tracker, home):
    params = {f"section.key{i}": i for i in range(250)} | {"long": "x" * 7000, "list": (2, 4)}
    parent = start(tracker, kind="ablate")
    tags = {"mempo.algorithm": "mempo", "mempo.seed": "3", "prefect.flow_run_id": "f-1"}
    run_id = start(tracker, name="child", params=params, tags=tags, parent=parent)
    second = start(tracker, parent=parent)
    info = tracker.run_info(run_id)
    assert (info.name, info.kind, info.status, info.parent) == ("child", "train", "RUNNING", parent)
    assert len(info.params) == 252 and info.params["section.key249"] == "249"
    assert len(info.params["long"]) == 6000 and info.params["list"] == "[2, 4]"
    assert tags.items() <= info.tags.items()
    assert info.tags["mempo.pid"] == str(os.getpid())
    assert info.tags["mempo.pid_started"] == processes.birth(os.getpid())
    assert tracker.children(parent) == [run_id, second]
    assert [run.run_id for run in tracker.find({"mempo.seed": "3"})] == [run_id]
    assert info.artifact_uri.startswith((home / "artifacts").as_uri())


def test_metrics_artifacts_and_texts_are_read_back(tracker, tmp_path):
    run_id, other = start(tracker), start(tracker)
    tracker.log_metrics(run_id, {"reward/mean": THIRD, "loss/kl": math.nan, "b": math.inf}, step=1)
    tracker.log_metrics(run_id, {"reward/mean": 0.5}, step=2)
    tracker.log_metrics(other, {"reward/mean": 1.0}, step=1)
    assert points(tracker, run_id, "reward/mean") == [(1, THIRD), (2, 0.5)]
    assert set(tracker.run_info(run_id).metrics) == {"reward/mean"}
    assert '"nan"' in (store.run_folder(run_id, Path(tracker.home)) / "journal.jsonl").read_text()
    table = tracker.curves([other, run_id])
    assert list(table.columns) == ["run_id", "iteration", "metric", "value"]
    assert table.to_numpy().tolist() == [
        [other, 1, "reward/mean", 1.0],
        [run_id, 1, "reward/mean", THIRD],
        [run_id, 2, "reward/mean", 0.5],
    ]
    assert tracker.curves([run_id], metrics=["loss/kl"]).empty

    (tmp_path / "page.html").write_text("<p>")
    tracker.log_artifact(run_id, tmp_path / "page.html", "pages")
    tracker.log_text(run_id, "seed: 3", "config.yaml")
    client, _ = tracker.connect()
    assert [file.path for file in client.list_artifacts(run_id, "pages")] == ["pages/page.html"]
    assert [file.path for file in client.list_artifacts(run_id)] == ["config.yaml", "pages"]
    with pytest.raises(ValueError, match="no such file"):
        tracker.log_artifact(run_id, tmp_path / "missing")


def test_fault_41_a_step_that_is_lived_again_is_no_second_point(tracker):
    run_id = start(tracker)
    for step, value in [(1, 0.1), (2, 0.2)]:
        tracker.log_metrics(run_id, {"reward/mean": value}, step)
    tracker.finish(run_id, "KILLED", "node lost")
    assert tracker.run_info(run_id).tags["mempo.reason"] == "node lost"

    tracker.resume(run_id)
    assert tracker.run_info(run_id).status == "RUNNING" and tracker.run_info(run_id).end is None
    for step, value in [(2, 0.25), (3, 0.3)]:
        tracker.log_metrics(run_id, {"reward/mean": value}, step)
    assert points(tracker, run_id, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    tracker.finish(run_id, "FINISHED")
    assert tracker.run_info(run_id).status == "FINISHED"
    with pytest.raises(ValueError, match=r"cannot resume the run 0123.*check the id"):
        tracker.resume("0123")


def test_fault_42_a_run_that_still_goes_on_is_not_resumed(tracker):
    run_id = start(tracker)
    with pytest.raises(ValueError, match=rf"{run_id} still goes on, in process {os.getpid()} on"):
        tracker.resume(run_id)
    tracker.set_tags(run_id, {"mempo.pid_started": "nowhere/1"})  # perhaps on another machine
    with pytest.raises(ValueError, match="still goes on"):
        tracker.resume(run_id)
    gone = processes.birth(os.getpid()).rpartition("/")[0] + "/1"
    tracker.set_tags(run_id, {"mempo.pid_started": gone})
    tracker.resume(run_id)
    assert tracker.run_info(run_id).tags["mempo.pid_started"] == processes.birth(os.getpid())


def test_a_kill_between_sending_and_its_mark_doubles_nothing(tracker, tmp_path):
    run_id = start(tracker)
    tracker.log_metrics(run_id, {"reward/mean": 0.1}, 1)
    (tmp_path / "weights").write_bytes(b"12345")
    tracker.log_checkpoint(run_id, tmp_path, step=1, metrics={"reward/mean": 0.1, "late": 2.0})
    (store.run_folder(run_id, Path(tracker.home)) / "journal.sent").unlink()
    assert tracker.flush(run_id)
    assert points(tracker, run_id, "reward/mean") == [(1, 0.1)]
    assert points(tracker, run_id, "late") == [(1, 2.0)]
    outputs = tracker.connect()[0].get_run(run_id).outputs
    assert outputs is not None and len(outputs.model_outputs) == 1


def test_a_checkpoint_is_a_model_of_the_run_whose_bytes_stay_where_they_are(tracker, tmp_path):
    run_id = start(tracker)
    (tmp_path / "weights").write_bytes(b"12345")
    tracker.log_metrics(run_id, {"reward/mean": 0.5}, 7)
    model_id = tracker.log_checkpoint(run_id, tmp_path, step=7, metrics={"reward/mean": 0.5})
    client, _ = tracker.connect()
    assert model_id is not None
    model = client.get_logged_model(model_id)
    assert model.params == {
        "uri": tmp_path.as_uri(),
        "bytes": "5",
        "sha256": store.folder_digest(tmp_path)[1],
        "step": "7",
    }
    assert model.source_run_id == run_id and str(model.status) == "READY"
    assert [(m.key, m.value, m.step) for m in model.metrics or []] == [("reward/mean", 0.5, 7)]
    assert points(tracker, run_id, "reward/mean") == [(7, 0.5)]
    outputs = client.get_run(run_id).outputs
    assert outputs is not None
    assert [(out.model_id, out.step) for out in outputs.model_outputs] == [(model_id, 7)]
    tracker.drop_checkpoint(run_id, 7)
    assert client.get_logged_model(model_id).tags["mempo.deleted"] == "true"


def test_fault_42_only_runs_of_dead_processes_are_reaped(tracker):
    script = (
        "import pickle, sys, time; tracker = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(tracker.start(name='killed', kind='train', params={}, tags={}), flush=True)\n"
        "time.sleep(60)"
    )
    child = python(script, pickle.dumps(tracker).hex())
    assert child.stdout is not None
    killed = child.stdout.readline().strip()
    assert tracker.reap() == []  # it lives
    mine = start(tracker)
    client, experiment_id = tracker.connect()
    foreign = client.create_run(experiment_id).info.run_id  # somebody's, by other means
    elsewhere, silent = start(tracker), start(tracker)
    for run_id in (elsewhere, silent):
        tracker.set_tags(run_id, {"mempo.host": "elsewhere"})
    tracker.set_tags(silent, {"mempo.heartbeat": "1000"})
    journal = store.run_folder(silent, Path(tracker.home)) / "journal.jsonl"
    os.utime(journal, (1000, 1000))
    child.kill()
    child.communicate()

    assert sorted(tracker.reap()) == sorted([killed, silent])
    statuses = {run.run_id: run.status for run in tracker.find()}
    assert statuses == {
        killed: "KILLED",
        silent: "KILLED",
        mine: "RUNNING",
        foreign: "RUNNING",
        elsewhere: "RUNNING",
    }
    assert "is gone" in tracker.run_info(killed).tags["mempo.reason"]
    assert "no sign of life" in tracker.run_info(silent).tags["mempo.reason"]


def test_reaping_first_sends_the_end_that_a_dead_run_could_not_send(tracker):
    run_id = start(tracker)
    tracker.finish(run_id, "FINISHED")
    client, _ = tracker.connect()
    client.update_run(run_id, status="RUNNING")
    gone = processes.birth(os.getpid()).rpartition("/")[0] + "/1"
    client.set_tag(run_id, "mempo.pid_started", gone)
    (store.run_folder(run_id, Path(tracker.home)) / "journal.sent").unlink()
    assert tracker.reap() == []
    assert tracker.run_info(run_id).status == "FINISHED"


def test_fault_44_metrics_of_another_process_land_in_the_named_run(tracker):
    run_id = start(tracker)
    script = (
        "import pickle, sys; tracker = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "import mlflow; mlflow.set_tracking_uri(tracker.uri); mlflow.set_experiment('other')\n"
        "with mlflow.start_run() as active:\n"
        "    tracker.log_metrics(sys.argv[2], {'reward/mean': 0.5}, 3)\n"
        "print(active.info.run_id)"
    )
    child = python(script, pickle.dumps(tracker).hex(), run_id)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert points(tracker, run_id, "reward/mean") == [(3, 0.5)]
    assert tracker.run_info(out.split()[-1]).metrics == {}


def test_fault_45_two_processes_touch_a_fresh_store_at_once(tmp_path):
    script = (
        "import sys; from tasks.tracking import Tracker\n"
        "tracker = Tracker(home=sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
        "run_id = tracker.start(name='r', kind='train', params={'a': 1}, tags={})\n"
        "tracker.log_metrics(run_id, {'a': 1.0}, 1); print(run_id)"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    # Separate folders for temporary files, so that no lock of MLflow's own can help.
    children = [
        python(script, str(tmp_path / "fresh"), TMPDIR=str(tmp_path / name))
        for name in ("one", "two")
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    ended = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], ended
    started = {out.split()[-1] for out, _ in ended}
    found = Tracker(home=str(tmp_path / "fresh")).find()
    assert {run.run_id for run in found} == started and len(started) == 2


def test_an_outage_is_reported_once_and_never_raised(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    nowhere = Tracker("http://127.0.0.1:9", home=str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="tasks.tracking"):
        nowhere.log_metrics("run", {"a": 1.0}, 1)
        nowhere.finish("run", "FINISHED")
        assert not nowhere.flush("run")
    assert len(caplog.records) == 1


def test_a_server_that_is_not_there_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"tracking.uri: .*127.0.0.1:9.*start it, or") as error:
        start(Tracker("http://127.0.0.1:9", home=str(tmp_path)))
    assert "\n" not in str(error.value)


def test_fault_51_an_unwritable_home_is_refused_before_a_run_is_started(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="MEMPO_HOME"):
        start(Tracker(home=str(tmp_path / "file")))


def test_a_deleted_experiment_is_named(home):
    client, _ = Tracker(experiment="other", home=str(home)).connect()
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(ValueError, match=r"tracking.experiment: 'gone' was deleted"):
        start(Tracker(experiment="gone", home=str(home)))
