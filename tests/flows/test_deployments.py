"""Deployments built from `conf/`, and their forms; no server is needed."""

import subprocess
import sys

import pytest

from conf.load import load, presets, setting_names
from conf.study import studies
from conf.sweep import sweeps
from flows.deployments import deployments
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


@pytest.mark.parametrize("name", ["ablate/study", "sweep/search"])
def test_the_settings_of_a_form_exist_and_hold_no_password(forms, name):
    from prefect.utilities.schema_tools.validation import is_valid

    schema = dict(forms[name].schema)
    for good in ("tracking.uri=http://host:5000", "learner.lr=1e-3", "iterations = 2"):
        assert is_valid({"settings": [good]}, schema), good
    assert is_valid({"settings": None}, schema)
    for bad in (
        "tracking.uri=http://me:hunter2@host",
        "environment.retriever_url=http://me:hunter 2@host",
        "learner.rl=1e-3",
        "learner.lr",
        "learner",
        "lr=1e-3",
        "preset=test",
        "",
    ):
        assert not is_valid({"settings": ["learner.lr=1e-3", bad]}, schema), bad


def test_the_preset_of_a_form_cannot_be_changed_as_its_values_would_stay(forms):
    from prefect.utilities.schema_tools.validation import is_valid

    form = forms["train/demo"]
    experiment = form.parameters["experiment"]
    assert is_valid({"experiment": experiment}, dict(form.schema))
    assert not is_valid({"experiment": {**experiment, "preset": "wiki"}}, dict(form.schema))
    assert not is_valid({"experiment": experiment}, dict(forms["train/test"].schema))


def test_a_cluster_file_of_ones_own_is_where_studies_and_sweeps_run_too(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("address: head:6379\n")
    made = {d.full_name: d for d in deployments(str(file))}
    assert made["train/demo"].parameters["experiment"]["cluster"]["address"] == "head:6379"
    for name in ("ablate/study", "sweep/search", "resume/run"):
        assert made[name].parameters["cluster"] == str(file)
        assert str(file) in made[name].schema["properties"]["cluster"]["enum"]


def test_the_whole_form_is_built_where_torch_is_missing():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from flows.deployments import deployments\n"
        "made = {d.full_name: d for d in deployments('local')}\n"
        "print(len(made['train/demo'].schema['definitions']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
