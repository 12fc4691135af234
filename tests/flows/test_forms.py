"""The flows of forms: what is named there becomes the very plan of a command; nothing is run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from conf.load import load, to_yaml
from conf.study import load_study
from conf.sweep import load_sweep
from conf.text import ConfigError
from flows import forms
from tasks import store

# MLflow and SQLAlchemy warn about each other.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple]:
    """What the forms start, which here ends at once; a home of the test's own."""
    calls: list[tuple] = []
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    for name in ("run_study", "run_sweep"):
        monkeypatch.setattr(forms, name, lambda *args: calls.append(args))
    monkeypatch.setattr(forms, "train", lambda *args, **more: calls.append((*args, more)))
    return calls


def test_a_study_is_that_of_the_command(calls):
    forms.ablate.fn("demo", seeds=[7], settings=["iterations=2"], cluster="ray")
    wanted = load_study("demo", seeds=[7], cluster="ray", overrides=["iterations=2"])
    assert calls == [(wanted, "")]
    forms.ablate.fn("demo", seeds=[])  # an empty list of the form is none
    assert calls[1] == (load_study("demo"), "")


def test_a_sweep_is_that_of_the_command(calls):
    forms.sweep.fn("test", seeds=[7], settings=["loss.clip=0.3"], cluster="ray")
    wanted = load_sweep("test", seeds=[7], cluster="ray", overrides=["loss.clip=0.3"])
    assert calls == [(wanted, "")]


@pytest.mark.parametrize(
    ("form", "values", "fault"),
    [
        (forms.ablate, {"settings": ["loss.clip_high=0.01"]}, "loss.clip_high"),
        (forms.sweep, {"settings": ["learner.lr=1e-3"]}, "'space' both name learner.lr"),
        (forms.sweep, {"seeds": [1, 1]}, "says 1 twice"),
        (forms.resume, {"run": "0" * 32}, "there is no "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(calls, form, values, fault):
    with pytest.raises(ConfigError, match=fault):
        form.fn(**values)
    assert calls == [] and not store.home().exists()


def test_there_is_nothing_to_go_on_with_in_an_empty_home(calls):
    for form in (forms.ablate, forms.sweep):
        with pytest.raises(ValueError, match="--resume auto: no unfinished run of the"):
            form.fn(resume="auto")
    assert calls == []


def test_a_run_goes_on_with_its_own_settings_where_the_form_says(calls, monkeypatch):
    experiment = load("test", overrides=["loss.clip=0.3"], seed=5)
    run_id = "a" * 32
    folder = store.run_folder(run_id)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(experiment))
    asked: list[SimpleNamespace] = []

    def run_to_resume(tracker, experiment, run):
        asked.append(SimpleNamespace(experiment=experiment, run=run))
        return run

    monkeypatch.setattr(forms, "run_to_resume", run_to_resume)
    forms.resume.fn(run_id, cluster="ray")
    [(found, options)] = calls
    assert options == {"resume": run_id} and asked[0].run == run_id
    assert (found.loss.clip, found.seed) == (0.3, 5)
    assert found.cluster.address == load("test", cluster="ray").cluster.address
    assert asked[0].experiment == found
