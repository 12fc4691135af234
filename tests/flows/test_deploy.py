"""Deployments and their schedules on a real Prefect server."""

import json
import shutil
from pathlib import Path

import pytest

import conf.load
from conf.load import load
from conf.text import ConfigError
from flows.deploy import deploy

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def server(home: Path):
    """A client of a real server that has a work pool of each kind."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        for kind in ("process", "docker", "kubernetes"):
            client.create_work_pool(WorkPoolCreate(name=f"my-{kind}", type=kind))
        yield client


@pytest.fixture(scope="module")
def before(server, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The schedules of studies, once all is deployed."""
    deploy("my-process", schedules=tmp_path_factory.mktemp("none"))
    return set(schedules(server, "ablate/study"))


def schedules(client, name: str) -> dict:
    found = client.read_deployment_by_name(name)
    return {s.slug: s for s in client.read_deployment_schedules(found.id)}


def write(folder: Path, name: str, **values: object) -> None:
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    (folder / f"{name}.yaml").write_text("\n".join(lines))


def test_deploying_again_keeps_switches_and_removes_what_lost_its_file(server, tmp_path):
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    study = {"deployment": "ablate/study", "parameters": {"study": "demo", "seeds": [1]}}
    write(tmp_path, "nightly", cron="0 2 * * *", **study)
    write(tmp_path, "often", interval=600, **study)
    write(tmp_path, "weekly", rrule="FREQ=WEEKLY;BYDAY=MO", active=False, **study)
    write(tmp_path, "fast", deployment="train/demo", cron="1 1 * * *", set=["learner.lr=1e-3"])
    lines = deploy("my-process", schedules=tmp_path)
    assert sum(": new, on" in line for line in lines) == 3
    found = schedules(server, "ablate/study")
    assert {slug: s.active for slug, s in found.items()} == {
        "nightly": True,
        "often": True,
        "weekly": False,
    }
    assert found["often"].schedule.interval.total_seconds() == 600
    resolved = schedules(server, "train/demo")["fast"].parameters["experiment"]
    assert resolved == load("demo", overrides=["learner.lr=1e-3"]).model_dump(mode="json")

    # A person switches one off, changes another's parameters and adds one by hand.
    deployment = server.read_deployment_by_name("ablate/study")
    server.update_deployment_schedule(deployment.id, found["nightly"].id, active=False)
    server.request(
        "PATCH",
        "/deployments/{id}/schedules/{schedule_id}",
        path_params={"id": deployment.id, "schedule_id": found["often"].id},
        json={"parameters": {"study": "paper"}},
    )
    by_hand = DeploymentScheduleCreate(schedule=CronSchedule(cron="5 5 * * *"))
    server.create_deployment_schedules(deployment.id, [by_hand])
    (tmp_path / "weekly.yaml").unlink()
    write(tmp_path, "nightly", cron="0 3 * * *", **study)
    lines = deploy("my-process", schedules=tmp_path)
    assert "schedule weekly of ablate/study: removed, its file is gone" in lines
    assert any("nightly" in line and "time is that of the file now" in line for line in lines)
    assert any("often" in line and "keeps the parameters" in line for line in lines)
    kept = schedules(server, "ablate/study")
    assert set(kept) == {"nightly", "often", None}
    assert not kept["nightly"].active and kept["nightly"].schedule.cron == "0 3 * * *"
    assert kept["often"].parameters == {"study": "paper"}
    assert server.read_deployment_by_name("ablate/study").id == deployment.id


def test_deployments_of_presets_that_are_gone_go_unless_a_person_has_a_hand_in_them(
    server, tmp_path, monkeypatch
):
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    for pool, names in (("my-docker", ["theirs"]), ("my-process", ["old", "timed"])):
        with monkeypatch.context() as patch:
            folder = tmp_path / pool
            shutil.copytree(conf.load.CONF, folder)
            for name in names:
                (folder / "preset" / f"{name}.yaml").write_text("# of before\nextends: test\n")
            patch.setattr(conf.load, "CONF", folder)
            deploy(pool, image="x" if pool == "my-docker" else "", schedules=tmp_path)
    timed = server.read_deployment_by_name("train/timed")
    by_hand = DeploymentScheduleCreate(schedule=CronSchedule(cron="5 5 * * *"))
    server.create_deployment_schedules(timed.id, [by_hand])
    old = server.read_deployment_by_name("train/old")
    copy = {"tags": old.tags, "entrypoint": old.entrypoint, "work_pool_name": "my-process"}
    server.create_deployment(old.flow_id, "copy", **copy)
    server.create_deployment(old.flow_id, "of-a-person", work_pool_name="my-process")

    lines = deploy("my-process", schedules=tmp_path)
    assert [line for line in lines if "train/old" in line] == [
        "deployment train/old: removed, its preset is gone"
    ]
    assert any(line.startswith("deployment train/timed: its preset is gone, but") for line in lines)
    there = {(server.read_flow(d.flow_id).name, d.name) for d in server.read_deployments(limit=200)}
    assert not {(flow, "old") for flow in ("train", "sft", "evaluate")} & there
    assert ("sft", "timed") not in there
    kept = ("timed", "copy", "of-a-person", "theirs", "demo")
    assert {("train", name) for name in kept} <= there
    assert not [line for line in deploy("my-process", schedules=tmp_path) if "removed" in line]


def test_each_kind_of_pool_is_told_how_to_start_a_run(server, tmp_path):
    deploy("my-process", schedules=tmp_path)
    found = server.read_deployment_by_name("train/demo")
    assert found.job_variables == {"working_dir": str(Path.cwd())}
    assert (found.entrypoint, found.pull_steps) == ("flows.train.train", [])
    for kind in ("docker", "kubernetes"):
        deploy(f"my-{kind}", image="registry/mempo:0.1", schedules=tmp_path)
        found = server.read_deployment_by_name("train/demo")
        assert found.work_pool_name == f"my-{kind}"
        assert found.job_variables == {"image": "registry/mempo:0.1"}
    mine = tmp_path / "cluster" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("cpus: 2\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: work pool my-docker starts containers"):
        deploy("my-docker", image="x", cluster=str(mine), schedules=tmp_path)
    with pytest.raises(ConfigError, match="--pool none: there is no such work pool"):
        deploy("none", schedules=tmp_path)
    with pytest.raises(ConfigError, match="--image: work pool my-docker starts containers"):
        deploy("my-docker", schedules=tmp_path)
    with pytest.raises(ConfigError, match=r"--pool '\.\./x': is no name of a work pool"):
        deploy("../x", schedules=tmp_path)
    with pytest.raises(ConfigError, match="--image: work pool my-process starts processes"):
        deploy("my-process", image="x", schedules=tmp_path)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"deployment": "train/none", "cron": "* * * * *"}, "there is no deployment 'train/none'"),
        (
            {"deployment": "ablate/study", "cron": "every day"},
            "'cron' = 'every day' cannot be used",
        ),
        (
            {"deployment": "ablate/study", "interval": 5, "parameters": {"stdy": "demo"}},
            "unknown parameter 'stdy'",
        ),
        (
            {"deployment": "promote/model", "interval": 5},
            "bad.yaml: 'parameters' must say run, which has no default",
        ),
        ({"deployment": "ablate/study", "interval": 5, "set": ["a=b"]}, "'set' changes a preset"),
        (
            {"deployment": "train/demo", "interval": 5, "set": ["loss.clp=1"]},
            "bad.yaml: .*loss.clp",
        ),
        (
            {"deployment": "sweep/search", "interval": 5, "parameters": {"sweep": "nosuch"}},
            "bad.yaml: 'parameters': .*nosuch",
        ),
        (
            {"deployment": "ablate/study", "interval": 5, "parameters": {"seeds": "abc"}},
            "bad.yaml: 'parameters': .*abc",
        ),
        (
            {"deployment": "ablate/study", "interval": 5, "parameters": {"seeds": [1, 1]}},
            "bad.yaml: 'parameters': --seeds says 1 twice",
        ),
        (
            {
                "deployment": "sweep/search",
                "interval": 5,
                "parameters": {"sweep": "demo", "settings": ["learner.lr=1e-3"]},
            },
            "bad.yaml: 'parameters': --set and 'space' both name learner.lr",
        ),
        (
            {
                "deployment": "sweep/search",
                "interval": 5,
                "parameters": {
                    "sweep": "demo",
                    "settings": ["tracking.uri=postgresql://me:secret@host/db"],
                },
            },
            r"bad.yaml: 'parameters': .*//me:\*\*\*@host/db' cannot be used: .*a password$",
        ),
        (
            {"deployment": "train/demo", "interval": 5, "parameters": {"experiment": {}}},
            "change a preset by 'set'",
        ),
    ],
)
def test_a_schedule_that_cannot_be_used_changes_nothing(server, before, tmp_path, values, fault):
    write(tmp_path, "a-good-one", deployment="ablate/study", cron="0 2 * * *")
    write(tmp_path, "bad", **values)
    with pytest.raises(ConfigError, match=fault):
        deploy("my-process", schedules=tmp_path)
    assert set(schedules(server, "ablate/study")) == before
