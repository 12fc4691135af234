import logging
import subprocess
import sys
from pathlib import Path

import pytest

from mempo.types import Question, Trajectory
from tasks import databases, store
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other.
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(store.__file__).parents[1]


def test_the_default_is_a_file_under_home(monkeypatch, tmp_path):
    monkeypatch.delenv("MEMPO_DATABASE_URL", raising=False)
    assert databases.mlflow_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        (
            "postgresql://me:a%40b@host/db",
            "postgresql+psycopg2://me:a%40b@host/db?connect_timeout=10&options=-csearch_path%3Dmlflow",
        ),
        (
            "postgresql+asyncpg://host/db?sslmode=require",
            "postgresql+psycopg2://host/db?connect_timeout=10"
            "&options=-csearch_path%3Dmlflow&sslmode=require",
        ),
    ],
)
def test_the_configured_postgres_is_used_in_a_schema_of_its_own(monkeypatch, tmp_path, given, uri):
    monkeypatch.setenv("MEMPO_DATABASE_URL", given)
    assert databases.mlflow_uri(tmp_path) == uri
    assert databases.optuna_uri() == uri.replace("mlflow", "optuna")
    tracker = Tracker(home=str(tmp_path))
    assert tracker.uri == uri and "a%40b" not in repr(tracker)
    assert Tracker("http://host:5000").uri == "http://host:5000"


@pytest.mark.parametrize(
    "given", ["mysql://me:hunter2@host/db", "me:hunter2@host", "postgresql://me:hunter2@host:x/db"]
)
def test_another_address_is_refused_and_not_repeated(monkeypatch, tmp_path, given):
    monkeypatch.setenv("MEMPO_DATABASE_URL", given)
    with pytest.raises(ValueError, match=r"^MEMPO_DATABASE_URL: is no address of a") as error:
        databases.mlflow_uri(tmp_path)
    assert "hunter2" not in str(error.value)


@pytest.mark.services
def test_a_run_is_recorded_in_postgres_and_its_files_under_home(
    monkeypatch, tmp_path, postgres_url
):
    monkeypatch.setenv("MEMPO_DATABASE_URL", postgres_url)
    tracker = Tracker(home=str(tmp_path))
    run_id = tracker.start(name="r", kind="train", params={"a": 1}, tags={"mempo.seed": "3"})
    tracker.log_metrics(run_id, {"reward/mean": 0.5}, 1)
    tracker.log_text(run_id, "hello", "greeting.txt")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(b"1")
    assert tracker.log_checkpoint(run_id, tmp_path / "weights", step=1, metrics={})
    answered = Trajectory(Question("q", "?", 1, [["a"]]), 0, [], "answered", "a")
    [trace] = tracker.log_traces(run_id, [answered], decode=str)
    tracker.finish(run_id, "FINISHED")

    info = tracker.run_info(run_id)
    assert (info.status, info.metrics) == ("FINISHED", {"reward/mean": 0.5})
    assert info.artifact_uri.startswith((tmp_path / "artifacts").as_uri())
    assert [file.name for file in (tmp_path / "artifacts").rglob("greeting.txt")]
    client, experiment_id = tracker.connect()
    assert client.search_traces(locations=[experiment_id])[0].info.trace_id == trace
    assert not (tmp_path / "mlflow.db").exists()

    from sqlalchemy import create_engine, text

    with create_engine(tracker.uri).connect() as connection:
        schemas = text("select distinct schemaname from pg_tables where tablename = 'runs'")
        assert connection.execute(schemas).scalars().all() == ["mlflow"]
        everything = connection.execute(text("select database_to_xml(true, false, '')")).scalar()
    assert run_id in str(everything) and "hunter2" not in str(everything)
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"hunter2" not in file.read_bytes(), file


@pytest.mark.services
def test_fault_45_two_processes_touch_a_fresh_postgres_at_once(monkeypatch, tmp_path, postgres_url):
    monkeypatch.setenv("MEMPO_DATABASE_URL", postgres_url)
    script = (
        "import sys; from tasks.tracking import Tracker\n"
        "Tracker(home=sys.argv[1]).start(name='r', kind='train', params={}, tags={})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    two = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    ended = [child.communicate(timeout=120)[1] for child in two]
    assert [child.returncode for child in two] == [0, 0], ended
    assert len(Tracker(home=str(tmp_path)).find()) == 2


@pytest.mark.services
def test_no_password_is_told_where_a_database_fails(
    monkeypatch, tmp_path, postgres_url, caplog, capfd
):
    wrong = postgres_url.replace("hunter2", "hunter3")
    monkeypatch.setenv("MEMPO_DATABASE_URL", wrong)
    tracker = Tracker(home=str(tmp_path))
    told: list[str] = []
    for act in (
        lambda: tracker.start(name="r", kind="train", params={}, tags={}),
        lambda: tracker.resume("0123"),
        lambda: Tracker(
            "postgresql+psycopg2://me:hunter3@127.0.0.1:9/db", home=str(tmp_path)
        ).connect(),
    ):
        with pytest.raises(ValueError, match=r"127.0.0.1") as error:
            act()
        told.append(str(error.value))
    with caplog.at_level(logging.DEBUG):
        tracker.log_metrics("run", {"a": 1.0}, 1)
        assert tracker.reap() == []
    printed = capfd.readouterr()
    told += [caplog.text, printed.out, printed.err, repr(tracker)]
    assert "does not answer" in caplog.text
    assert not [text for text in told if "hunter3" in text]


def test_a_driver_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with (
        pytest.raises(ValueError, match=r"pip install 'mempo\[postgres\]'"),
        databases.creating("postgresql+psycopg2://host/db"),
    ):
        pass


@pytest.mark.services
@pytest.mark.filterwarnings("default")
def test_prefect_mlflow_and_optuna_share_a_postgres_in_schemas_of_their_own(
    monkeypatch, tmp_path, postgres_url
):
    from prefect.client.orchestration import get_client
    from sqlalchemy import create_engine, text

    from tasks.prefect_server import prefect_server
    from tasks.search import _study

    monkeypatch.setenv("MEMPO_DATABASE_URL", postgres_url)
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with prefect_server(lambda _: None), get_client(sync_client=True) as client:
        client.create_flow_from_name("kept in postgres")
    Tracker(home=str(tmp_path)).connect()
    import optuna

    _study("kept too", optuna.pruners.NopPruner())
    with create_engine(databases.mlflow_uri(tmp_path)).connect() as connection:
        found = "select schemaname from pg_tables where tablename = :table"
        where = {
            table: connection.execute(text(found), {"table": table}).scalars().all()
            for table in ("flow_run", "experiments", "trials", "alembic_version")
        }
        flows = connection.execute(text("select name from prefect.flow")).scalars().all()
        studies = connection.execute(text("select study_name from optuna.studies")).scalars().all()
    assert where["flow_run"] == ["prefect"] and where["experiments"] == ["mlflow"]
    assert where["trials"] == ["optuna"]
    assert sorted(where["alembic_version"]) == ["mlflow", "optuna", "prefect"]
    assert (flows, studies) == (["kept in postgres"], ["kept too"])
    assert not list(tmp_path.rglob("*.db"))
