"""Which run a resume goes on with; a real MLflow store, but nothing is run."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from conf.load import load
from conf.study import Best, Child, Study
from flows.plan import PLAN, difference, place, place_of, plan_of, plan_tags, run_to_resume
from tasks import processes
from tasks.tracking import Tracker

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's and SQLAlchemy's own


def child(variant: str, *overrides: str, seed: int = 1, **more: str) -> Child:
    experiment = load("test", overrides=list(overrides), seed=seed)
    return Child(variant.upper(), variant, seed, experiment, **more)


STUDY = Study("mine", "for tests", (child("a"), child("b", "learner.lr=1e-3")))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def tracker(home, request) -> Tracker:
    return Tracker(experiment=request.node.name, home=str(home))


def begun(tracker: Tracker, study: Study = STUDY) -> str:
    run_id = tracker.start(name=study.name, kind="ablate", params={}, tags=plan_tags(study))
    tracker.log_text(run_id, json.dumps(plan_of(study)), PLAN)
    return run_id


def cut_off(tracker: Tracker, study: Study = STUDY) -> str:
    run_id = begun(tracker, study)
    tracker.finish(run_id, "KILLED", "KeyboardInterrupt")
    return run_id


def refused(tracker: Tracker, resume: str, study: Study = STUDY) -> str:
    with pytest.raises(ValueError, match="--resume") as caught:
        run_to_resume(tracker, study, resume)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(study: Study = STUDY, **update: object) -> Study:
    return replace(study, **update)


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (changed(name="other"), ["the study 'mine', not 'other'"]),
        (changed(children=STUDY.children[:1]), ["'b seed 1'", "now lacks", "variants"]),
        (changed(children=(*STUDY.children, child("a", seed=2))), ["'a seed 2'", "now has"]),
        (
            changed(children=(STUDY.children[0], child("b", "learner.lr=2e-3"))),
            ["setting 'learner.lr' of 'b seed 1' was 0.001 and is 0.002 now"],
        ),
        (
            changed(children=(STUDY.children[0], replace(STUDY.children[1], method="C"))),
            ["setting 'method' of 'b seed 1' was 'B' and is 'C' now"],
        ),
        (
            changed(children=(STUDY.children[0], replace(STUDY.children[1], source="a seed 1"))),
            ["setting 'from' of 'b seed 1' was '' and is 'a seed 1' now"],
        ),
        (changed(best=Best()), ["'best' was None and is {'metric': 'em'"]),
    ],
)
def test_what_changed_since_is_named(study, words):
    told = difference(json.loads(json.dumps(plan_of(STUDY))), plan_of(study))
    assert [word for word in words if word not in told] == []
    assert plan_tags(study) != plan_tags(STUDY)


def test_what_cannot_change_a_number_is_no_difference():
    elsewhere = tuple(
        replace(
            c,
            experiment=load(
                "test",
                overrides=["cluster.parallel=2", "tracking.traces=0", *own],
                seed=c.seed,
            ),
        )
        for c, own in zip(STUDY.children, ([], ["learner.lr=1e-3"]), strict=True)
    )
    same = changed(children=elsewhere, description="other words")
    assert difference(json.loads(json.dumps(plan_of(STUDY))), plan_of(same)) == ""
    assert plan_tags(same) == plan_tags(STUDY)


def test_a_run_stands_for_the_child_of_its_place_and_configuration_only(tracker):
    one = child("a", start="x")
    tags = {
        "mempo.variant": "a",
        "mempo.start": "x",
        "mempo.seed": "1",
        "mempo.config_sha256": place(one, one.experiment)[3],
    }
    run_id = tracker.start(name="a", kind="train", params={}, tags=tags)
    assert place_of(tracker.run_info(run_id)) == place(one, one.experiment)
    others = (child("b", start="x"), child("a"), child("a", "loss.clip=0.3", start="x"))
    for other in others:
        assert place(other, other.experiment) != place(one, one.experiment)


def test_other_code_of_one_s_own_is_another_child_and_refused_on_resume(
    tracker, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "plan_reward.py"
    file.write_text("def paid(trajectory):\n    return 0.0\n")
    one = child("a", "reward.function=plan_reward:paid")
    before, study = place(one, one.experiment), changed(children=(one,))
    code = {"mempo.own.reward.function": before[4]}
    names = ("mempo.variant", "mempo.start", "mempo.seed", "mempo.config_sha256")
    tags = dict(zip(names, before, strict=False)) | code
    done = tracker.start(name="a", kind="train", params={}, tags=tags)
    run_id = cut_off(tracker, study)
    assert run_to_resume(tracker, study, run_id) == run_id
    assert place_of(tracker.run_info(done)) == before

    file.write_text("def paid(trajectory):\n    return 1.0\n")
    assert place(one, one.experiment) != before
    assert place(one, one.experiment)[:4] == before[:4]  # by the configuration it is the same
    for resume in (run_id, "auto"):
        assert "'reward.function (code)' of 'a seed 1' was" in refused(tracker, resume, study)


def test_the_run_that_is_named_goes_on_if_it_was_cut_off(tracker):
    run_id = cut_off(tracker)
    cut_off(tracker)
    assert run_to_resume(tracker, STUDY, run_id) == run_id
    told = refused(tracker, run_id, changed(children=(child("a", "loss.clip=0.3"),)))
    assert "'b seed 1'" in told and "--resume" in told


def test_auto_is_the_newest_unfinished_run_of_the_same_study(tracker):
    assert "no unfinished run of the study 'mine'" in refused(tracker, "auto")
    older = cut_off(tracker)
    assert run_to_resume(tracker, STUDY, "auto") == older
    newer = cut_off(tracker)
    tracker.finish(cut_off(tracker), "FINISHED")
    cut_off(tracker, changed(name="other"))
    assert run_to_resume(tracker, STUDY, "auto") == newer
    lr = changed(children=(STUDY.children[0], child("b", "learner.lr=2e-3")))
    assert "'learner.lr' of 'b seed 1' was 0.001 and is 0.002 now" in refused(tracker, "auto", lr)


def test_a_finished_study_goes_on_only_where_children_failed(tracker):
    run_id = begun(tracker)
    tracker.finish(run_id, "FINISHED")
    assert f"`mempo report {run_id}`" in refused(tracker, run_id)
    tracker.set_tags(run_id, {"mempo.failed": "a seed 1: RuntimeError: out of memory"})
    assert run_to_resume(tracker, STUDY, run_id) == run_id
    assert run_to_resume(tracker, STUDY, "auto") == run_id
    tracker.set_tags(run_id, {"mempo.failed": ""})
    refused(tracker, "auto")


def test_a_study_that_goes_on_in_a_living_process_is_left_alone(tracker):
    run_id = begun(tracker)
    assert f"still goes on, in process {os.getpid()}" in refused(tracker, run_id)
    assert f"run {run_id} still goes on" in refused(tracker, "auto")
    before = cut_off(tracker)
    begun(tracker)
    assert run_to_resume(tracker, STUDY, "auto") == before


def test_a_study_whose_process_was_killed_goes_on(tracker):
    run_id = begun(tracker)
    gone = processes.birth(os.getpid()).rpartition("/")[0] + "/1"
    tracker.set_tags(run_id, {"mempo.pid_started": gone})
    assert tracker.run_info(run_id).status == "RUNNING"
    assert run_to_resume(tracker, STUDY, "auto") == run_id
    assert run_to_resume(tracker, STUDY, run_id) == run_id


def test_what_is_no_ablation_or_not_there_is_refused(tracker, home):
    train = tracker.start(name="a run", kind="train", params={}, tags={})
    assert "kind 'train'" in refused(tracker, train)
    assert "not found" in refused(tracker, "0123")
    bare = tracker.start(name="old", kind="ablate", params={}, tags={})
    tracker.finish(bare, "KILLED")
    assert "no record of its study" in refused(tracker, bare)
    elsewhere = cut_off(Tracker(experiment="elsewhere", home=str(home)))
    assert "tracking.experiment" in refused(tracker, elsewhere)
