"""A sweep that was cut off, wherever that was, and goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows import trial as trial_module
from flows.sweep import sweep
from flows.sweep_plan import difference, outcome_of, plan_of, plan_tags, run_to_resume, trials_of
from mempo.learners import checkpoint
from tasks import store
from tasks.search import Search
from tasks.tracking import Tracker

# Prefect, Ray and MLflow warn in ways that are theirs.
pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("default")]


def test_a_sweep_that_was_cut_off_while_training_goes_on_with_the_same_points(
    good, states, cut_off, write, trains, tracker
):
    plan = write(("method: random", "method: tpe"))
    trains(good)
    whole = trials_of(tracker, sweep(plan).run_id)
    calls = []

    def dies(experiment):
        calls.append(experiment)
        # The sixth is the second seed of trial 2.
        return KeyboardInterrupt() if len(calls) == 6 else good(experiment)

    trains(dies)
    run_id = cut_off(plan)
    assert states(run_id) == ["complete", "complete", "cut off"]
    (run,) = tracker.find({"mempo.trial": "2", "mempo.seed": "2", "mempo.sweep": run_id})
    folder = store.checkpoint_folder(run.run_id, 1)
    checkpoint.write(folder, lambda _: None, {"threads": 1, "metrics": {}, "measured": {}})
    again = trains(good)
    result = sweep(plan, run_id)
    assert result.run_id == run_id
    assert again.began == [("trial 2", 2)] + [(f"trial {n}", s) for n in (3, 4, 5) for s in (1, 2)]
    assert again.resumed == [run.run_id]
    trials = trials_of(tracker, run_id)
    assert [t.point for t in trials] == [t.point for t in whole]
    assert [t.outcome for t in trials] == [t.outcome for t in whole]
    assert len(tracker.find({"mempo.kind": "trial", "mempo.sweep": run_id})) == 6
    assert len(tracker.find({"mempo.kind": "train", "mempo.sweep": run_id})) == 12
    with pytest.raises(ValueError, match="all of that sweep is done"):
        run_to_resume(tracker, plan, run_id)


@pytest.mark.parametrize("place", ["before the run is closed", "before the search is told"])
@pytest.mark.parametrize("ends", ["complete", "failed"])
def test_a_kill_between_the_end_of_a_trial_and_its_record_runs_nothing_twice(
    good, cut_off, write, trains, tracker, place, ends
):
    plan = write(("trials: 6", "trials: 4"), ("seeds: [1, 2]", "seeds: [1]"))
    numbers = iter(range(10))
    spoil = {1} if ends == "failed" else set()
    trains(lambda e: RuntimeError("broken") if next(numbers) in spoil else good(e))
    with pytest.MonkeyPatch.context() as patch:
        tell, finish = Search.tell, Tracker.finish

        def dies_before_telling(self, number, *rest):
            if number == 1:
                raise KeyboardInterrupt
            tell(self, number, *rest)

        def dies_before_closing(self, run_id, status, reason=""):
            info = self.run_info(run_id)
            ours = info.kind == "trial" and info.tags["mempo.trial"] == "1"
            if ours and outcome_of(info).state and status != "KILLED":
                raise KeyboardInterrupt
            finish(self, run_id, status, reason)

        if place == "before the search is told":
            patch.setattr(Search, "tell", dies_before_telling)
        else:
            patch.setattr(Tracker, "finish", dies_before_closing)
        run_id = cut_off(plan)
    (run,) = tracker.find({"mempo.trial": "1", "mempo.kind": "trial", "mempo.sweep": run_id})
    if run.status == "RUNNING":  # as a reap would close it
        tracker.finish(run.run_id, "KILLED")
    again = trains(good)
    result = sweep(plan, run_id)
    assert again.began == [("trial 2", 1), ("trial 3", 1)]
    trials = trials_of(tracker, run_id)
    assert [t.state for t in trials] == ["complete", ends, "complete", "complete"]
    assert trials[1].run.status == ("FAILED" if ends == "failed" else "FINISHED")
    assert len(tracker.find({"mempo.kind": "trial", "mempo.sweep": run_id})) == 4
    assert result.failed == ({"trial 1": "seed 1: RuntimeError: broken"} if spoil else {})


def test_a_failed_run_of_a_trial_that_was_cut_off_stays_failed(
    good, cut_off, write, trains, tracker
):
    plan = write(("trials: 6", "trials: 2"), ("seeds: [1, 2]", "seeds: [1]"))
    trains(lambda _: RuntimeError("broken"))

    def dies(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_module, "Outcome", dies)
        run_id = cut_off(plan)
    again = trains(good)
    result = sweep(plan, run_id)
    assert again.began == [("trial 1", 1)]
    assert result.failed == {"trial 0": "seed 1: RuntimeError: broken"}


def test_a_sweep_whose_database_is_lost_is_not_begun_again(
    good, cut_off, write, trains, tracker, monkeypatch
):
    plan = write(("trials: 6", "trials: 3"))
    calls = iter(range(99))
    trains(lambda e: KeyboardInterrupt() if next(calls) == 3 else good(e))
    run_id = cut_off(plan)
    monkeypatch.setattr(
        "tasks.databases.optuna_uri", lambda: f"sqlite:///{store.home() / 'other.db'}"
    )
    with pytest.raises(ValueError, match="knows 2 trials of this sweep, but its database only 0"):
        sweep(plan, run_id)


def test_a_resume_with_other_settings_is_refused_by_name(cut_off, write, trains, tracker):
    plan = write(("trials: 6", "trials: 2"))
    trains(lambda _: KeyboardInterrupt())
    run_id = cut_off(plan)

    def refused(*changes: tuple[str, str], **options) -> str:
        with pytest.raises(ValueError, match="--resume") as caught:
            run_to_resume(tracker, write(*changes, **options), run_id)
        return str(caught.value)

    two = ("trials: 6", "trials: 2")
    assert "'trials' was 2 and is 6 now" in refused()
    assert "'seeds' was [1, 2] and is [3] now" in refused(two, seeds=[3])
    assert "setting 'loss.clip' was" in refused(two, overrides=["loss.clip=0.3"])
    assert "'space' of 'memory.weight' was [0, 1.0] and is [0, 2.0] now" in refused(
        two, ("[0, 1.0]", "[0, 2.0]")
    )
    assert "'space' of 'learner.lr' was {'low': 0.0001" in refused(two, ("1.0e-2", "1.0e-3"))
    assert "'prune' was False" in refused(two, ("metric:", "prune: true\nmetric:"))
    assert run_to_resume(tracker, write(two, overrides=["cluster.parallel=2"]), run_id) == run_id
    with pytest.raises(ValueError, match="auto: no unfinished run of the sweep 'mine'"):
        run_to_resume(tracker, write(), "auto")
    (child,) = tracker.find({"mempo.kind": "trial"})
    with pytest.raises(ValueError, match="a run of kind 'trial', no sweep; give the sweep's own"):
        run_to_resume(tracker, plan, child.run_id)


def test_a_plan_says_all_that_decides(write):
    plan = write()
    told = plan_of(plan)
    assert told["settings"]["loss.clip"] == plan.first.loss.clip
    assert not {"learner.lr", "memory.weight", "seed", "cluster.cpus"} & set(told["settings"])
    other = replace(plan, description="other")
    assert plan_tags(other) == plan_tags(plan) and difference(told, plan_of(other)) == ""
