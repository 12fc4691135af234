"""The supervisor with small services of its own: what runs, what is started again, what is left."""

import socket
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from tasks import supervisor
from tasks.supervisor import Service, answers

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    yield tmp_path
    supervisor.stop()


@pytest.fixture
def web() -> Service:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    return Service("web", command, {}, url, partial(answers, url))


def quiet(_: str) -> None: ...


def wait_for(log: Path, word: str) -> None:
    deadline = time.monotonic() + 30
    while not log.exists() or word not in log.read_text():
        assert time.monotonic() < deadline, log
        time.sleep(0.1)


def python(name: str, code: str, healthy=lambda: True, **more) -> Service:
    return Service(name, [sys.executable, "-c", code], {"TOLD": "by env"}, name, healthy, **more)


def test_services_are_found_while_they_run_and_nothing_is_left_after(web, home):
    note = "import os, time; print(os.environ['TOLD'], flush=True); time.sleep(60)"
    assert supervisor.running() == {}
    supervisor.start([web, python("note", note)], 60, quiet)
    assert supervisor.running() == {"web": web.address, "note": "note"}
    state = supervisor.state()
    assert state is not None
    root = psutil.Process(state["pid"])
    everything = [root, *root.children(recursive=True)]
    assert supervisor.stop()
    assert not [process for process in everything if process.is_running()]
    assert supervisor.running() == {} and not supervisor.stop()
    assert supervisor.log_of("note").read_text() == "by env\n"
    assert "by env" not in " ".join(path.name for path in home.rglob("*"))


def test_a_service_that_ends_is_named_with_its_log_and_the_others_end_too(web):
    bad = python("bad", "import sys; sys.exit('no luck')", healthy=lambda: False)
    with pytest.raises(RuntimeError, match=r"bad ended by itself; see .*bad\.log"):
        supervisor.start([web, bad], 60, quiet)
    assert not answers(web.address) and supervisor.running() == {}
    assert "no luck" in supervisor.log_of("bad").read_text()


def test_the_logs_of_the_last_start_are_kept(web):
    for word in ("first", "second", "third"):
        supervisor.start(
            [web, python("note", f"import time; print('{word}', flush=True); time.sleep(60)")],
            60,
            quiet,
        )
        wait_for(supervisor.log_of("note"), word)
        supervisor.stop()
    logs = supervisor.log_of("note").parent
    assert (logs / "note.log").read_text() == "third\n"
    assert (logs / "note.log.1").read_text() == "second\n"
    assert "note started" in (logs / "supervisor.log.1").read_text()
    names = {f"{n}.log{end}" for n in ("note", "web", "supervisor") for end in ("", ".1")}
    assert {path.name for path in logs.iterdir()} == names


def test_a_service_that_is_never_healthy_is_told_in_time(web):
    with pytest.raises(RuntimeError, match=r"slow is not healthy after 1 s; see .*slow\.log"):
        supervisor.start(
            [python("slow", "import time; time.sleep(60)", healthy=lambda: False), web], 1, quiet
        )
    assert supervisor.running() == {}


def test_what_comes_after_another_waits_for_it_and_is_started_again(web, home, monkeypatch):
    tries = Path(home) / "tries"
    code = (
        f"import time; file = open({str(tries)!r}, 'a+'); file.write('x'); file.flush(); "
        "file.seek(0); n = len(file.read()); 1 / (n - 1); time.sleep(60)"
    )
    kept = python("kept", code, healthy=tries.exists, after=web.address)
    supervisor.start([web, kept], 60, quiet)
    deadline = time.monotonic() + 30
    while len(tries.read_text()) < 2:
        assert time.monotonic() < deadline, supervisor.log_of("kept").read_text()
        time.sleep(0.2)
    assert answers(web.address)  # the failure has ended nobody else
    assert "ZeroDivisionError" in supervisor.log_of("kept").read_text()
    assert supervisor.stop()


def test_a_state_of_a_supervisor_that_is_gone_counts_for_nothing(home):
    (home / "services").mkdir()
    file = home / "services" / "services.json"
    file.write_text('{"pid": 1, "born": "another time", "addresses": {"web": "http://x"}}')
    assert supervisor.running() == {} and supervisor.mlflow_address() == ""
    assert not supervisor.stop() and not file.exists()
