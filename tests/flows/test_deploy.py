"""Deployments, their forms and their schedules, on a real Prefect server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conf.load import load, presets, setting_names
from conf.study import studies
from conf.sweep import sweeps
from conf.text import ConfigError
from flows.deploy import deploy, deployments
from mempo.config import Experiment


@pytest.fixture(scope="module")
def forms():
    return {made.full_name: made for made in deployments("local")}


def test_there_is_a_form_for_each_preset_and_one_each_for_studies_and_sweeps(forms):
    per_preset = {f"{flow}/{name}" for flow in ("train", "sft", "evaluate") for name in presets()}
    others = {"ablate/study", "sweep/search", "resume/run", "promote/model"}
    assert set(forms) == per_preset | others
    assert all(form.description for form in forms.values())


def test_a_form_holds_the_values_of_its_preset_and_asks_for_nothing(forms):
    form = forms["train/demo"]
    assert Experiment.model_validate(form.parameters["experiment"]) == load("demo")
    needed = {name: form.schema["required"] for name, form in forms.items()}
    assert needed.pop("resume/run") == ["run"] and needed.pop("promote/model") == ["run"]
    assert not any(needed.values())


def test_every_field_of_a_form_has_help(forms):
    for name, form in forms.items():
        for parameter, field in form.schema["properties"].items():
            assert field.get("description"), f"{name}: {parameter}"
    definitions = forms["train/demo"].schema["definitions"]
    fields = [f for d in definitions.values() for f in d.get("properties", {}).values()]
    assert len(fields) >= len(setting_names())
    assert not [f for f in fields if not {"description", "$ref", "allOf"} & f.keys()]


def test_forms_show_names_to_choose_from_and_hide_what_no_person_sets(forms):
    ablate = forms["ablate/study"].schema["properties"]
    assert ablate["study"]["enum"] == list(studies())
    assert forms["sweep/search"].schema["properties"]["sweep"]["enum"] == list(sweeps())
    assert set(forms["train/demo"].schema["properties"]) == {"experiment", "name"}
    assert set(forms["sft/demo"].schema["properties"]) == {"experiment", "name", "out"}


def test_deployments_are_of_the_cluster_and_settings_that_were_given():
    made = {d.full_name: d for d in deployments("services", ["cluster.parallel=2"])}
    cluster = made["train/demo"].parameters["experiment"]["cluster"]
    assert (cluster["address"], cluster["parallel"]) == ("127.0.0.1:26379", 2)
    study = made["ablate/study"].parameters
    assert (study["cluster"], study["settings"]) == ("services", ["cluster.parallel=2"])


def test_a_promotion_looks_where_the_runs_of_its_cluster_are():
    made = {d.full_name: d for d in deployments("compose")}
    assert made["promote/model"].parameters == {"tracking": "http://mlflow:5000"}


def test_the_settings_of_a_form_hold_no_password(forms):
    from prefect.utilities.schema_tools.validation import is_valid

    schema = dict(forms["ablate/study"].schema)
    assert is_valid({"settings": ["tracking.uri=http://host:5000", "learner.lr=1e-3"]}, schema)
    assert is_valid({"settings": None}, schema)
    assert not is_valid({"settings": ["tracking.uri=http://me:hunter2@host"]}, schema)


def test_the_whole_form_is_built_where_torch_is_missing():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from flows.deploy import deployments\n"
        "made = {d.full_name: d for d in deployments('local')}\n"
        "print(len(made['train/demo'].schema['definitions']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


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


@pytest.mark.services
@pytest.mark.filterwarnings("default")
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


@pytest.mark.services
@pytest.mark.filterwarnings("default")
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
    with pytest.raises(ConfigError, match="--pool none: there is no such work pool"):
        deploy("none", schedules=tmp_path)
    with pytest.raises(ConfigError, match="--image: work pool my-docker starts containers"):
        deploy("my-docker", schedules=tmp_path)
    with pytest.raises(ConfigError, match=r"--pool '\.\./x': is no name of a work pool"):
        deploy("../x", schedules=tmp_path)
    with pytest.raises(ConfigError, match="--image: work pool my-process starts processes"):
        deploy("my-process", image="x", schedules=tmp_path)


@pytest.mark.services
@pytest.mark.filterwarnings("default")
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
