"""The services of one machine, and runs that are started, watched and cancelled in a browser.

Real servers of Prefect and MLflow, a real Ray head and a real worker. Pictures of the pages are
kept in the test's folder (`pytest --basetemp FOLDER` says where), to be looked at.
"""

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from conf.load import load
from tasks import supervisor
from tasks.records import RunInfo
from tasks.tracking import Tracker

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SMALL = ("evaluate.before=false", "evaluate.sampled=false", "evaluate.objectives=[1]")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def mempo(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """`mempo up` in a home of its own, on free ports; `mempo down` at the end."""
    home = tmp_path_factory.mktemp("up")
    prefect, mlflow, ray = free_ports(3)
    env = {**os.environ, "MEMPO_HOME": str(home)}
    for name in ("PREFECT_API_URL", "RAY_AUTH_MODE"):
        env.pop(name, None)
    ports = ("--prefect-port", str(prefect), "--mlflow-port", str(mlflow), "--ray-port", str(ray))
    started = mempo("up", *ports, env=env)
    try:
        assert started.returncode == 0, started.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMPO_HOME", str(home))
            patch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{prefect}/api")
            yield SimpleNamespace(
                home=home,
                env=env,
                said=started.stdout,
                prefect=f"http://127.0.0.1:{prefect}",
                mlflow=f"http://127.0.0.1:{mlflow}",
                ray=f"127.0.0.1:{ray}",
                ports=ports,
            )
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMPO_HOME", str(home))
            supervisor.stop()


def supervised(up) -> list[psutil.Process]:
    state = supervisor.state()
    assert state is not None
    root = psutil.Process(state["pid"])
    return [root, *root.children(recursive=True)]


def settings(up, *overrides: str) -> dict:
    """The parameters of train/test with these settings changed."""
    changes = [f"cluster.address={up.ray}", *overrides]
    experiment = load("test", cluster="services", overrides=changes)
    return {"experiment": experiment.model_dump(mode="json")}


def ask(up, deployment: str, parameters: dict) -> httpx.Response:
    """Ask the server, as its page does, for a run of a deployment."""
    found = httpx.get(f"{up.prefect}/api/deployments/name/{deployment}").json()
    url = f"{up.prefect}/api/deployments/{found['id']}/create_flow_run"
    return httpx.post(url, json={"parameters": parameters})


def start(up, *overrides: str) -> str:
    """The id of a run of train/test that was just asked for."""
    asked = ask(up, "train/test", settings(up, *SMALL, *overrides))
    assert asked.is_success, asked.text
    return asked.json()["id"]


def flow_run(up, run_id: str) -> dict:
    return httpx.get(f"{up.prefect}/api/flow_runs/{run_id}").json()


def wait_until(condition, seconds: float, what: str):
    """What the condition gives once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def over(up, run_id: str, seconds: float = 300) -> dict:
    """The flow run once it is over."""
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

    def ended() -> dict | None:
        found = flow_run(up, run_id)
        return found if found["state_type"] in final else None

    return wait_until(ended, seconds, f"the end of flow run {run_id}")


def is_tracked(flow_run_id: str) -> bool:
    return bool(Tracker().find({"prefect.flow_run_id": flow_run_id}))


def tracked(flow_run_id: str) -> RunInfo:
    """The MLflow run of a flow run."""
    (found,) = Tracker().find({"prefect.flow_run_id": flow_run_id})
    return found


def test_services_say_where_they_are_and_listen_on_the_loopback_alone(up):
    for address in (up.prefect, up.mlflow, up.ray, "services/logs"):
        assert address in up.said
    listening = [
        connection.laddr.ip
        for process in supervised(up)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 5
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}


def test_services_are_started_once_and_commands_find_them(up):
    again = mempo("up", *up.ports, env=up.env)
    assert again.returncode == 0 and "running already" in again.stderr
    assert up.prefect in again.stdout
    doctor = mempo("doctor", "--preset", "test", env=up.env)
    assert f"PREFECT_API_URL: a healthy server at {up.prefect}/api" in doctor.stdout


@pytest.fixture(scope="module")
def four(up) -> list[str]:
    """The ids of four runs that were asked for at once, when all of them are over."""
    ids = [start(up, "iterations=1") for _ in range(4)]
    for run_id in ids:
        over(up, run_id)
    return ids


def test_four_runs_at_once_on_sqlite_all_end_well(up, four):
    """More than the machine has room for: who finds none waits."""
    assert [flow_run(up, run_id)["state_type"] for run_id in four] == ["COMPLETED"] * 4
    runs = [tracked(run_id) for run_id in four]
    assert len({run.run_id for run in runs}) == 4
    assert [run.status for run in runs] == ["FINISHED"] * 4
    assert all("eval/n1/f1" in run.metrics for run in runs)


def test_a_form_with_contradicting_settings_fails_before_anything_starts(up):
    asked = settings(up, *SMALL)
    asked["experiment"]["loss"]["clip_high"] = 0.1
    bad = ask(up, "train/test", asked).json()["id"]
    ended = over(up, bad)
    assert ended["state_type"] == "FAILED"
    assert "loss.clip_high" in ended["state"]["message"]
    assert not is_tracked(bad)
    asked["experiment"]["rollout"]["group_size"] = 0  # what the schema itself forbids
    assert ask(up, "train/test", asked).status_code == 409


@pytest.fixture
def page(up):
    if BROWSER is None:
        pytest.skip("no chromium is on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def open_form(page, up) -> None:
    page.goto(f"{up.prefect}/deployments")
    page.get_by_placeholder("Search deployments").fill("test")
    row = page.get_by_role("row").filter(has_text="train")
    row.first.get_by_role("link", name="test").first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    page.get_by_text("Iterations (Optional)").wait_for()


def field(page, label: str):
    named = page.get_by_text(re.compile(f"^{label}( \\(Optional\\))?$"))
    return page.locator(".schema-form-property").filter(has=named).last.locator("input,textarea")


def submit(page, up) -> str:
    """Start what the form says; the id of the flow run, whose page is open then."""
    name = page.locator(".p-label", has_text="Run Name").locator("input").first.input_value()
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("scheduled to start").first.wait_for()
    asked = {"flow_runs": {"name": {"any_": [name]}}}
    (run,) = httpx.post(f"{up.prefect}/api/flow_runs/filter", json=asked).json()
    page.goto(f"{up.prefect}/runs/flow-run/{run['id']}")
    return run["id"]


def test_a_run_is_started_watched_and_followed_to_its_metrics_in_a_browser(up, page, tmp_path):
    open_form(page, up)
    assert field(page, "Iterations").input_value() == "2"  # the preset's own values stand there
    assert page.get_by_text("Clip range of the ratio").count() == 1  # and help for each
    field(page, "Iterations").fill("1")
    page.screenshot(path=tmp_path / "form.png")
    run_id = submit(page, up)
    page.locator(".state-badge", has_text="Completed").first.wait_for(timeout=240_000)
    assert over(up, run_id)["state_type"] == "COMPLETED"

    page.reload()
    worker_line = re.compile(f"rollout on {re.escape(socket.gethostname())}: .*reward/mean")
    page.get_by_text(worker_line).first.wait_for()  # said by the stage, on a Ray worker
    page.get_by_text(re.compile("iteration 1/1")).first.wait_for()  # said by the flow
    page.screenshot(path=tmp_path / "run.png")

    page.locator("li.p-tab", has_text="Artifacts").first.click()
    page.get_by_text("mlflow-").first.click()
    run = tracked(run_id)
    link = page.get_by_role("link", name=f"MLflow run {run.run_id}")
    link.wait_for()
    page.screenshot(path=tmp_path / "artifact.png")
    page.goto(link.get_attribute("href"))
    page.get_by_text("reward/mean").first.wait_for()
    assert run.params["iterations"] == "1"
    page.screenshot(path=tmp_path / "mlflow.png")


def test_a_run_cancelled_in_a_browser_ends_its_actors_and_its_mlflow_run_in_30_s(
    up, page, tmp_path
):
    run_id = start(up, "iterations=500", "checkpoint.every=500")
    wait_until(lambda: is_tracked(run_id), 120, "the MLflow run")
    wait_until(
        lambda: "reward/mean" in tracked(run_id).metrics, 120, "the first iteration's metrics"
    )
    assert actors(up) == 2
    page.goto(f"{up.prefect}/runs/flow-run/{run_id}")
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("button", name="Confirm").click()
    clicked = time.monotonic()
    wait_until(lambda: tracked(run_id).status == "KILLED", 30, "MLflow run closed as KILLED")
    wait_until(lambda: actors(up) == 0, 30 - (time.monotonic() - clicked), "actors gone")
    assert over(up, run_id, 60)["state_type"] == "CANCELLED"
    page.reload()
    page.locator(".state-badge", has_text="Cancelled").first.wait_for()
    page.screenshot(path=tmp_path / "cancelled.png")


def actors(up) -> int:
    """Processes of samplers and learners on the shared Ray head."""

    def name(process: psutil.Process) -> str:
        try:
            return " ".join(process.cmdline())
        except psutil.Error:  # it ended meanwhile
            return ""

    return sum(name(p).startswith(("ray::Sampler", "ray::Learner")) for p in supervised(up))


def test_a_scheduled_sweep_fires_by_itself_and_goes_with_its_file(up, tmp_path):
    soon = datetime.now(UTC) + timedelta(seconds=45)
    (tmp_path / "hourly.yaml").write_text(
        "deployment: sweep/search\n"
        f'rrule: "DTSTART:{soon:%Y%m%dT%H%M%SZ}\\nRRULE:FREQ=HOURLY"\n'
        "parameters: {sweep: test, cluster: services, seeds: [5], "
        f'settings: ["cluster.address={up.ray}"]}}\n'
    )
    pool = ("--pool", "mempo", "--cluster", "services", "--schedules", str(tmp_path))
    deployed = mempo("deploy", *pool, env=up.env)
    assert "schedule hourly of sweep/search: new, on" in deployed.stdout, deployed.stderr

    def fired() -> dict | None:
        runs = httpx.post(f"{up.prefect}/api/flow_runs/filter", json={}).json()
        sweeps = [r for r in runs if r["auto_scheduled"] and r["state_type"] == "RUNNING"]
        return sweeps[0] if sweeps else None

    run = wait_until(fired, 120, "the scheduled run")
    (tmp_path / "hourly.yaml").unlink()
    deployed = mempo("deploy", *pool, env=up.env)
    assert "schedule hourly of sweep/search: removed" in deployed.stdout, deployed.stderr
    wait_until(lambda: is_tracked(run["id"]), 120, "the sweep in MLflow")
    sweep = tracked(run["id"])
    assert sweep.tags["mempo.kind"] == "sweep" and sweep.tags["mempo.seed"] == "5"
    trials = {"mlflow.parentRunId": sweep.run_id}
    wait_until(lambda: Tracker().find(trials, "FINISHED"), 120, "its first trial")
    cancelling = {"state": {"type": "CANCELLING"}}
    httpx.post(f"{up.prefect}/api/flow_runs/{run['id']}/set_state", json=cancelling)
    assert over(up, run["id"], 60)["state_type"] == "CANCELLED"
    assert tracked(run["id"]).status == "KILLED"


def test_a_promotion_waits_suspended_for_a_person_and_then_sets_the_alias(up, four):
    run_id = tracked(four[0]).run_id
    asked = ask(up, "promote/model", {"run": run_id}).json()["id"]
    wait_until(lambda: flow_run(up, asked)["state_name"] == "Suspended", 60, "suspended")
    assert not any(run_id in " ".join(p.cmdline()) for p in supervised(up)) and actors(up) == 0
    client = Tracker().connect()[0]
    assert not client.search_registered_models()
    answer = {"run_input": {"approve": True, "note": "good"}}
    resumed = httpx.post(f"{up.prefect}/api/flow_runs/{asked}/resume", json=answer)
    assert resumed.json()["status"] == "ACCEPT", resumed.text
    assert over(up, asked, 90)["state_type"] == "COMPLETED"
    version = client.get_model_version_by_alias("mempo", "champion")
    assert version.run_id == run_id
    assert tracked(four[0]).tags["mempo.promotion"] == "champion: True good"


def test_down_leaves_nothing_behind_and_a_run_of_the_worker_is_closed(up):
    run_id = start(up, "iterations=500", "checkpoint.every=500")
    wait_until(lambda: is_tracked(run_id), 120, "the MLflow run")
    before = supervised(up)
    stopped = mempo("down", env=up.env)
    assert stopped.returncode == 0 and "stopped" in stopped.stdout
    assert not [process for process in before if process.is_running()]
    assert tracked(run_id).status == "KILLED"
    with sqlite3.connect(up.home / "prefect" / "prefect.db") as database:
        asked = "SELECT state_type FROM flow_run WHERE id = ?"
        (state,) = database.execute(asked, (run_id,)).fetchone()
    database.close()
    assert state in ("CRASHED", "CANCELLED")  # a running one would hold a slot of the worker
    assert not (Path(up.home) / "services" / "services.json").exists()
