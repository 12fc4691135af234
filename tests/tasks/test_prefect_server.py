import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from mempo.config import Cluster
from tasks import prefect_server as prefect_server_module
from tasks.prefect_server import check_prefect, prefect_server
from tasks.ray_cluster import connect_ray, shutdown_ray


class Handler(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self):
        self.send_response(self.status if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, format, *args):
        pass


@contextmanager
def prefect_answering(status: int) -> Iterator[str]:
    """Address of a Prefect API whose health is `status`."""
    handler = type("Answer", (Handler,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/api"
        server.shutdown()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def no_server_configured(monkeypatch, tmp_path):
    """No Prefect server in the environment or in a profile of this machine."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.setattr(prefect_server_module, "configured_prefect_url", lambda: "")


def test_a_healthy_prefect_passes():
    with prefect_answering(200) as url:
        check_prefect(url)
        check_prefect(url + "/")


def test_a_prefect_that_is_not_there_is_refused_by_name(closed_port):
    with pytest.raises(ValueError) as caught:
        check_prefect(f"http://127.0.0.1:{closed_port}/api")
    message = str(caught.value)
    assert message.startswith("PREFECT_API_URL: no server answers at") and "\n" not in message


@pytest.mark.parametrize("status", [404, 500])
def test_a_prefect_that_is_not_healthy_is_refused_by_name(status):
    with prefect_answering(status) as url, pytest.raises(ValueError, match=f"answers {status}"):
        check_prefect(url)


def test_a_configured_prefect_is_used_as_it_is(monkeypatch):
    started = []
    monkeypatch.setattr(prefect_server_module, "_started", started.append)
    with prefect_answering(200) as url:
        monkeypatch.setenv("PREFECT_API_URL", url)
        with prefect_server() as used:
            assert used == url
            assert os.environ["PREFECT_API_URL"] == url
        assert os.environ["PREFECT_API_URL"] == url
    assert started == []


def test_a_configured_prefect_that_is_not_there_is_an_error(monkeypatch, closed_port):
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{closed_port}/api")
    with pytest.raises(ValueError, match="PREFECT_API_URL"), prefect_server():
        pass


def test_a_prefect_that_ends_at_once_is_told_with_its_last_words(monkeypatch, no_server_configured):
    monkeypatch.setattr(sys, "executable", "/bin/ls")  # says "unrecognized option" or the like
    with pytest.raises(RuntimeError, match="did not start"), prefect_server(lambda line: None):
        pass


ABORT = """\
Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedReader name='<stdin>'>
Python runtime state: finalizing (tstate=0x00007f5058d76ef8)

Current thread 0x00007f5058e6eb80 (most recent call first):
  <no Python frame>
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("OSError: no space\nand so it ends\n" + ABORT, r"\(exit code -6\): OSError: no space$"),
        ("one\ntwo\nthree\nfour\n" + ABORT, r"\(exit code -6\): two \| three \| four$"),
        (ABORT, r"\(exit code -6\): Python runtime state"),
        (
            "CommandError: Can't locate revision identified by 'x'\n"
            + "ERROR: exiting\n" * 9
            + ABORT,
            "written by a newer Prefect",
        ),
    ],
)
def test_the_cause_is_told_where_a_log_ends_with_an_abort(
    monkeypatch, no_server_configured, tmp_path, log, told
):
    (tmp_path / "log").write_text(log)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat '{tmp_path}/log'\nkill -ABRT $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(RuntimeError, match=told), prefect_server(lambda line: None):
        pass


def test_a_database_of_a_later_prefect_is_told(monkeypatch, no_server_configured, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # as in each command
    (tmp_path / "prefect").mkdir()
    with sqlite3.connect(tmp_path / "prefect" / "prefect.db") as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('of-a-later-one')")
    database.close()
    told = r"prefect.db was written by a newer Prefect than .*; move .*prefect away"
    with pytest.raises(RuntimeError, match=told), prefect_server(lambda line: None):
        pass


def test_the_prefect_process_that_fails_ends_with_its_own_status():
    code = (
        "import sys, time, tasks.prefect_app as app\n"
        "def run(*args, **kwargs): time.sleep(1); sys.exit(3)\n"  # the other thread reads by then
        "app.uvicorn.run = run\n"
        "app.main(1)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin:
        assert process.wait(timeout=50) == 3


def test_the_prefect_process_ends_with_its_parent():
    """Its standard input is a pipe from the parent, and that breaks however the parent ends."""
    code = (
        "import time, tasks.prefect_app as app\n"
        "app.uvicorn.run = lambda *args, **kwargs: time.sleep(60)\n"
        "app.main(1)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=50) != 0


def wait_for_line(url: str, message: str) -> dict[str, Any]:
    """The log entry of that message, once Prefect has it."""
    for _ in range(100):
        logs = httpx.post(f"{url}/logs/filter", json={}).json()
        if found := [log for log in logs if log["message"] == message]:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"{message!r} is not among {[log['message'] for log in logs]}")


@pytest.mark.services
@pytest.mark.filterwarnings("default")
def test_fault_48_a_line_logged_on_a_ray_worker_is_in_prefect(no_server_configured, tmp_path):
    """A real server and a real Ray, as one command has them, and nothing of them afterwards."""
    from prefect import flow
    from prefect.logging import get_run_logger
    from prefect_ray import RayTaskRunner

    from tasks import stages

    @stages.stage("look around")
    def look_around() -> tuple[str, str, str]:
        get_run_logger().info("a line from the worker")
        env = os.environ
        return env["PREFECT_API_URL"], env["OMP_NUM_THREADS"], env["MEMPO_HOME"]

    runner: Any = RayTaskRunner()  # its type says less than Prefect's asks for

    @flow(task_runner=runner)
    def look() -> tuple[str, str, str]:
        return stages.run(look_around)

    said: list[str] = []
    with prefect_server(said.append) as url:
        assert os.environ["PREFECT_API_URL"] == url
        head = connect_ray(Cluster(cpus=1, threads=1))
        assert ":" in head
        with pytest.raises(RuntimeError, match="connected to a Ray already"):
            connect_ray(Cluster())
        try:
            assert look() == (url, "1", str(tmp_path))
            logged = wait_for_line(url, "a line from the worker")
        finally:
            shutdown_ray()
        runs = httpx.post(f"{url}/task_runs/filter", json={}).json()
    assert [run["state_type"] for run in runs] == ["COMPLETED"]
    assert logged["task_run_id"] == runs[0]["id"]
    assert [line.split(":")[0] for line in said] == ["Prefect server"] * 2
    assert (tmp_path / "prefect" / "prefect.db").is_file()
    assert "PREFECT_API_URL" not in os.environ
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
