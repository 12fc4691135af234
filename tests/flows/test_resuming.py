"""Which training run goes on, with which settings; a real MLflow store, but nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.load import load, load_cluster, sha256, to_yaml
from conf.text import ConfigError
from flows.resuming import last_checkpoint, run_to_resume, settings_of
from mempo.config import Experiment
from mempo.learners import checkpoint
from tasks import store
from tasks.tracking import Kind, Tracker

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's and SQLAlchemy's own

SETTINGS = load("test", overrides=["cluster.threads=3"])


@pytest.fixture
def tracker(tmp_path_factory, request, monkeypatch) -> Tracker:
    home = tmp_path_factory.getbasetemp() / "resuming"  # one store: making its tables takes long
    monkeypatch.setenv("MEMPO_HOME", str(home))
    return Tracker(experiment=request.node.name, home=str(home))


def begun(
    tracker: Tracker, experiment: Experiment = SETTINGS, kind: Kind = "train", parent=None
) -> str:
    tags = {"mempo.config_sha256": sha256(experiment)}
    run_id = tracker.start(name="a run", kind=kind, params={}, tags=tags, parent=parent)
    folder = store.run_folder(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(experiment))
    return run_id


def cut_off(tracker: Tracker, **given) -> str:
    run_id = begun(tracker, **given)
    tracker.finish(run_id, "KILLED")
    return run_id


def refused(tracker: Tracker, resume: str) -> str:
    with pytest.raises(ValueError, match="--resume") as caught:
        run_to_resume(tracker, SETTINGS, resume)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_settings_are_those_of_the_run_and_only_its_place_may_change(tracker) -> None:
    run_id = cut_off(tracker)
    assert settings_of(run_id) == SETTINGS
    moved = settings_of(run_id, cluster="ray", overrides=["cluster.address=head:1"])
    assert (moved.cluster.address, moved.cluster.sampler_gpus) == ("head:1", 1)
    assert sha256(moved) == sha256(SETTINGS)
    assert settings_of(run_id, cluster="ray").cluster.address == load_cluster("ray")["address"]
    assert settings_of(run_id, overrides=["cluster.parallel=2"]).cluster.threads == 3
    with pytest.raises(ConfigError, match=r"setting 'learner.lr' was 0.0003 and is 0.1 now; only"):
        settings_of(run_id, overrides=["learner.lr=0.1"])
    with pytest.raises(ConfigError, match="setting 'seed' was 0 and is 5 now"):
        settings_of(run_id, seed=5)
    with pytest.raises(ConfigError, match=r"there is no .*config.yaml; give the id of a run"):
        settings_of("unknown")


def test_a_run_that_was_cut_off_goes_on(tracker) -> None:
    run_id = cut_off(tracker)
    assert run_to_resume(tracker, SETTINGS, run_id) == run_id


def test_what_cannot_go_on_is_refused_with_the_reason(tracker) -> None:
    assert "mempo up" in refused(tracker, "0" * 32)
    assert "of kind 'sft', and only training goes on" in refused(
        tracker, cut_off(tracker, kind="sft")
    )
    study = begun(tracker, kind="ablate")
    assert f"--resume {study}` goes on" in refused(tracker, cut_off(tracker, parent=study))
    assert "still goes on, in process" in refused(tracker, begun(tracker))
    done = begun(tracker)
    tracker.finish(done, "FINISHED")
    assert f"that run is done; `mempo report {done}`" in refused(tracker, done)


def test_a_run_whose_own_code_has_changed_is_refused(tracker, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_mine.py").write_text("def f(trajectory):\n    return 0.0\n")
    experiment = load("test", overrides=["reward.function=of_mine:f"])
    with pytest.raises(ValueError, match=r"the file behind reward.function has changed since"):
        run_to_resume(tracker, experiment, cut_off(tracker, experiment=experiment))


def test_a_checkpoint_that_lacks_what_a_resume_needs_is_named(tracker) -> None:
    run_id = cut_off(tracker)
    checkpoint.write(store.checkpoint_folder(run_id, 1), lambda _: None, {"iteration": 1})
    with pytest.raises(ValueError, match="000001 was written before runs could go on"):
        last_checkpoint(run_id)


def test_settings_that_are_not_what_the_run_was_started_with_are_refused(tracker) -> None:
    run_id = cut_off(tracker)
    (store.run_folder(run_id) / "config.yaml").write_text("")  # a power cut, or an editor
    with pytest.raises(ValueError, match=r"its config.yaml is not what it was started with"):
        run_to_resume(tracker, settings_of(run_id), run_id)


def test_another_cluster_has_to_fit_the_run(tracker) -> None:
    run_id = cut_off(tracker)
    with pytest.raises(ConfigError, match=r"cluster.learners is 4, and learner.backend 'torch'"):
        settings_of(run_id, cluster="h200x8")


def test_auto_is_the_newest_of_these_settings_that_nobody_works_on(tracker) -> None:
    assert "no unfinished run with these settings; start it" in refused(tracker, "auto")
    cut_off(tracker, experiment=load("test", seed=9))
    cut_off(tracker, parent=begun(tracker, kind="ablate"))
    live = begun(tracker)
    assert f"run {live} still goes on; stop that first" in refused(tracker, "auto")
    old, new = cut_off(tracker), cut_off(tracker)
    assert run_to_resume(tracker, SETTINGS, "auto") == new != old


def test_it_goes_on_from_the_last_complete_checkpoint(tracker) -> None:
    run_id = cut_off(tracker)
    assert last_checkpoint(run_id) is None
    for n in (1, 2):
        folder = store.checkpoint_folder(run_id, n)
        state = {"threads": n, "metrics": {}, "measured": {}}
        checkpoint.write(folder, lambda f: (f / "weights").touch(), state)
    store.checkpoint_folder(run_id, 3).with_suffix(".partial").mkdir()  # a kill in its write
    last = last_checkpoint(run_id)
    assert last and (last.iteration, last.state["threads"]) == (2, 2)
    assert last.folder == Path(store.checkpoint_folder(run_id, 2))
