import sqlite3

import pytest

from flows.doctor_tracking import check_tracking


@pytest.mark.parametrize("uri", ["foo", "file:///runs", "ftp://host/x", "databricks", "/a/b.db"])
def test_what_is_no_server_and_no_database_is_refused(uri):
    with pytest.raises(ValueError, match="no MLflow server and no database; write http://") as e:
        check_tracking(uri)
    assert str(e.value).startswith(uri) and "\n" not in str(e.value)


def test_a_database_that_opens_is_found(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert check_tracking(uri) == f"{uri}, a fresh database"
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("create table experiments (id integer)")
    assert check_tracking(uri) == f"{uri}, a database of MLflow"


def test_a_database_that_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "damaged.db").write_text("no database at all " * 99)
    for uri in (f"sqlite:///{tmp_path / 'damaged.db'}", f"sqlite:///{tmp_path / 'none' / 'm.db'}"):
        with pytest.raises(ValueError, match="cannot be opened") as error:
            check_tracking(uri)
        assert uri in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_without_a_file_is_refused(uri):
    with pytest.raises(ValueError, match="names no file; write sqlite:////"):
        check_tracking(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+nothing://user:secret@127.0.0.1:9/name",
        "mysql:user:secret@127.0.0.1",
        "postgresql://user:secret@127.0.0.1:9/name",
    ],
)
def test_a_refusal_of_a_database_keeps_the_password_to_itself(uri):
    with pytest.raises(ValueError, match="database") as error:
        check_tracking(uri)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
