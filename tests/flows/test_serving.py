"""A worker of this machine for a Prefect server of one's own: real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf.load import CONF
from flows.serving import POOL, offer, serve

pytestmark = pytest.mark.filterwarnings("default")  # Prefect warns


def test_without_a_server_there_is_nothing_to_serve(monkeypatch, tmp_path):
    from tasks import prefect_server

    monkeypatch.setattr(prefect_server, "configured_prefect_url", lambda: "")
    with pytest.raises(ValueError, match=r"PREFECT_API_URL: not set.*`mempo up` starts one"):
        serve("local", [], 1, tmp_path)
    monkeypatch.setattr(prefect_server, "configured_prefect_url", lambda: "http://127.0.0.1:9/api")
    with pytest.raises(ValueError, match=r"no server answers at http://127\.0\.0\.1:9/api"):
        serve("local", [], 1, tmp_path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    from prefect.client.orchestration import get_client

    from tasks.prefect_server import prefect_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("PREFECT_API_URL", raising=False)
        with prefect_server(lambda _: None), get_client(sync_client=True) as client:
            yield client


@pytest.mark.services
def test_an_offer_makes_the_pool_and_the_next_one_brings_its_limit_and_slots_up_to_date(
    client, tmp_path, capsys
):
    from prefect.states import Running

    offer("local", [], 3, tmp_path)
    assert client.read_work_pool(POOL).concurrency_limit == 3
    deployment = client.read_deployment_by_name("train/demo")
    assert deployment.work_pool_name == POOL
    lost = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(lost.id, Running(), force=True)  # of a process that is gone
    capsys.readouterr()
    offer("local", [], 5, tmp_path)
    assert client.read_work_pool(POOL).concurrency_limit == 5
    assert client.read_flow_run(lost.id).state.is_crashed()
    said = capsys.readouterr().err
    assert f"flow run {lost.name!r}" in said and f"deployments for work pool {POOL}" in said


@pytest.mark.services
def test_the_command_becomes_a_worker_that_ends_with_ctrl_c(client, tmp_path):
    place, schedules = tmp_path / "clusters", tmp_path / "schedules"
    place.mkdir()
    schedules.mkdir()
    (place / "mine.yaml").write_text("address: head:6379\n")
    command = ["-m", "flows.cli", "serve", "--cluster", "mine.yaml", "--schedules", str(schedules)]
    env = {**os.environ, "PYTHONPATH": str(Path(CONF).parent)}
    with (tmp_path / "told").open("w") as told:
        worker = subprocess.Popen(
            [sys.executable, *command], cwd=place, env=env, stdout=told, stderr=subprocess.PIPE
        )
    try:
        deadline = time.monotonic() + 240
        # The server calls it ONLINE earlier, while a Ctrl-C may still be lost.
        while "started!" not in (tmp_path / "told").read_text():
            assert worker.poll() is None and time.monotonic() < deadline
            time.sleep(1)
        assert [w.status for w in client.read_workers_for_work_pool(POOL)] == ["ONLINE"]
        study = client.read_deployment_by_name("ablate/study").parameters
        assert study["cluster"] == str(place / "mine.yaml")
        experiment = client.read_deployment_by_name("train/demo").parameters["experiment"]
        assert experiment["cluster"]["address"] == "head:6379"
    finally:
        worker.send_signal(signal.SIGINT)
        _, said = worker.communicate(timeout=60)
    assert b"Ctrl-C ends it" in said and b"Traceback" not in said
