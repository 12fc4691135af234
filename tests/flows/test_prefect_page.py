"""What a run leaves on its page in Prefect, and what Prefect decides for it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from conf.load import load
from mempo.config import Cluster, Tracking
from tasks import placement
from tasks.tracking import Tracker

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def client(home: Path):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield client


def test_a_run_has_a_name_tags_progress_and_a_table(cold: SimpleNamespace, client):
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    from flows.train import train

    small = ("iterations=1", "evaluate.before=false", "evaluate.objectives=[1]", "learner.lr=2e-3")
    result = train(load("test", overrides=["cluster.cpus=2", cold.start, *small], seed=4))
    info = Tracker().run_info(result.run_id)
    flow_run = client.read_flow_run(UUID(info.tags["prefect.flow_run_id"]))
    assert flow_run.name == info.name
    assert flow_run.name.startswith("test mempo ") and flow_run.name.endswith(" seed 4")
    assert {"kind:train", "algorithm:mempo", "preset:test", "seed:4"} <= set(flow_run.tags)
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]))
    found = {artifact.type: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}
    assert found["progress"].data == 100.0
    table = found["table"].data
    assert '"objectives": 1' in table and '"mode": "sampled"' in table and '"f1"' in table


def test_a_run_whose_process_was_killed_is_closed_in_mlflow_and_in_prefect(home: Path, client):
    from prefect.states import Running

    from tasks.reaping import reap

    flow_id = client.create_flow_from_name("train")
    made = client.request("POST", "/flow_runs/", json={"flow_id": str(flow_id)}).json()
    client.set_flow_run_state(UUID(made["id"]), Running(), force=True)
    code = (
        "from tasks.tracking import Tracker\n"
        f"tags = {{'prefect.flow_run_id': '{made['id']}'}}\n"
        "print(Tracker().start(name='lost', kind='train', params={}, tags=tags))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    run_id = done.stdout.split()[-1]
    assert Tracker().run_info(run_id).status == "RUNNING"
    assert reap(Tracking()) == [f"run {run_id} of a process that is gone was closed as KILLED"]
    assert Tracker().run_info(run_id).status == "KILLED"
    state = client.read_flow_run(UUID(made["id"])).state
    assert state.is_crashed() and "process is gone" in state.message
    assert reap(Tracking()) == []


def test_slots_of_runs_whose_process_is_gone_come_free(home: Path, client):
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.states import Running

    from tasks.reaping import crash_lost

    client.create_work_pool(WorkPoolCreate(name="slots", type="process"))
    flow_id = client.create_flow_from_name("train")
    deployment = client.create_deployment(flow_id, "slots", work_pool_name="slots")
    lost, living = (client.create_flow_run_from_deployment(deployment) for _ in range(2))
    for run in (lost, living):
        client.set_flow_run_state(run.id, Running(), force=True)
    env = {**os.environ, "PREFECT__FLOW_RUN_ID": str(living.id)}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    try:
        (line,) = crash_lost("slots")
    finally:
        process.kill()
        process.communicate()
    assert lost.name in line
    assert client.read_flow_run(lost.id).state.is_crashed()
    assert client.read_flow_run(living.id).state.is_running()


def stop_for_a_while() -> None:
    time.sleep(0.7)
    with placement.stopped():
        time.sleep(2)


def test_runs_queue_for_gpus_where_prefect_has_a_limit(home: Path, client, monkeypatch):
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    from tasks.placement import GPU_LIMIT, gpu_slots

    monkeypatch.setattr(placement, "SLOT_POLL_S", 0.5)
    with gpu_slots(2.0, Cluster(timeout_s=5)):
        pass  # nobody has made the limit
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=2))

    def taken() -> int:
        return client.read_global_concurrency_limit_by_name(GPU_LIMIT).active_slots

    with gpu_slots(1.5, Cluster(timeout_s=5)):  # half a GPU cannot be shared with another run
        assert taken() == 2
        stop = threading.Thread(target=stop_for_a_while)
        stop.start()
        with pytest.raises(KeyboardInterrupt), gpu_slots(1.0, Cluster(timeout_s=3600)):
            pass  # it queued until then
        stop.join()
        with pytest.raises(TimeoutError), gpu_slots(1.0, Cluster(timeout_s=1)):
            pass
        with gpu_slots(0, Cluster()):
            assert taken() == 2
    assert taken() == 0


@pytest.mark.parametrize(
    ("error", "tries"), [("ConnectionResetError", 3), ("OSError", 3), ("ValueError", 1)]
)
def test_a_stage_is_tried_again_where_the_outside_failed(
    home: Path, tmp_path, monkeypatch, error, tries
):
    import builtins

    from prefect import flow

    from tasks import stages

    monkeypatch.setattr(stages, "RETRY_DELAY_S", 0)
    counted = tmp_path / "tries"

    @stages.stage("shaky", retries=2)
    def shaky() -> str:
        with counted.open("a") as file:
            file.write("x")
        raise getattr(builtins, error)("no luck")

    @flow(task_runner=stages.ray_runner(), persist_result=False)
    def shake() -> str:
        return stages.run(shaky)

    with pytest.raises(getattr(builtins, error)):
        shake()
    assert len(counted.read_text()) == tries
