"""A study that is stopped in the middle and goes on: real Prefect, Ray and MLflow."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from conf.study import Study, load_study

# Prefect, Ray and MLflow warn in ways that are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")

EXPERIMENT = "a-stopped-study"
STUDY = """
description: stopped in the middle
preset: test
seeds: [3]
set: [evaluate.before=false, "evaluate.objectives=[1]", iterations=1, cluster.cpus=2]
variants:
  start: {method: SFT, set: [iterations=0]}
  mempo: {method: MemPO}
  grpo: {method: GRPO, set: [memory.weight=0]}
  broken: {method: Broken, set: [audit.max_diff=1e-30]}
  back: {method: Looks back, from: mempo, set: [iterations=0, agent.history=all]}
"""


def tracker():
    from tasks.tracking import Tracker

    return Tracker(experiment=EXPERIMENT)


@pytest.fixture(scope="module")
def study(home: Path) -> Study:
    file = home / "stopped.yaml"
    file.write_text(STUDY)
    overrides = ["cluster.parallel=2", f"tracking.experiment={EXPERIMENT}"]
    return load_study(str(file), overrides=overrides)


def stop_at_first_iteration(patch: pytest.MonkeyPatch) -> None:
    """SIGINT in the middle of the first iteration, after the child that does not train is done."""
    from flows import training

    whole, once = training.Training._iterate, threading.Lock()

    def iterate(*arguments):
        if once.acquire(blocking=False):
            deadline = time.monotonic() + 120
            while not tracker().find({"mempo.variant": "start"}, "FINISHED"):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        return whole(*arguments)

    patch.setattr(training.Training, "_iterate", iterate)


@pytest.fixture(scope="module")
def stopped(study: Study):
    """The id of the study's run after it was stopped, and what was said."""
    from flows import ablate

    said: list[str] = []
    # A process that was started in the background may ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        stop_at_first_iteration(patch)
        patch.setattr(ablate, "say", lambda line, label="": said.append(line))
        with pytest.raises(KeyboardInterrupt):
            ablate.ablate(study, "", "mempo ablate mine.yaml")
    [run] = tracker().find({"mempo.kind": "ablate"})
    return run.run_id, said


@pytest.fixture(scope="module")
def resumed(study: Study, stopped):
    from flows.ablate import ablate
    from flows.plan import run_to_resume

    return ablate(study, run_to_resume(tracker(), study, "auto"))


def children(run_id: str):
    return [tracker().run_info(child) for child in tracker().children(run_id)]


def test_a_stopped_study_is_killed_and_says_how_it_goes_on(stopped):
    import ray

    run_id, said = stopped
    assert said[-1] == f"the study is not done; to go on: mempo ablate mine.yaml --resume {run_id}"
    assert tracker().run_info(run_id).status == "KILLED"
    states = {(c.tags["mempo.variant"], c.status) for c in children(run_id)}
    assert {("start", "FINISHED"), ("mempo", "KILLED")} <= states
    assert {status for _, status in states} == {"FINISHED", "KILLED"}  # nothing goes on
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


def test_what_is_finished_is_taken_over_and_the_rest_runs_anew(stopped, resumed):
    run_id, _ = stopped
    assert resumed.run_id == run_id
    assert tracker().run_info(run_id).status == "FINISHED"
    found = [(c.tags["mempo.variant"], c.status) for c in children(run_id)]
    assert found.count(("start", "FINISHED")) == 1
    assert found.count(("mempo", "FINISHED")) == 1 and ("mempo", "KILLED") in found
    assert found.count(("back", "FINISHED")) == 1
    assert [v for v, _ in found].count("start") == 1  # never run twice
    names = ["start seed 3", "mempo seed 3", "grpo seed 3", "back seed 3"]
    assert list(resumed.children) == names
    whole = resumed.children["start seed 3"]
    assert whole.metrics == tracker().run_info(whole.run_id).metrics
    assert whole.metrics["eval/n1/em"] >= 0


def test_algorithms_begin_from_the_same_start_and_questions(resumed):
    """Before the first update nothing differs."""
    mempo, grpo = (
        pd.read_parquet(
            Path(resumed.children[f"{variant} seed 3"].folder)
            / "iterations/000001/rollouts.parquet"
        )
        for variant in ("mempo", "grpo")
    )
    same = ["question_id", "rollout", "step", "prompt_ids", "output_ids", "reward", "adv_traj"]
    pd.testing.assert_frame_equal(mempo[same], grpo[same])
    assert not grpo["adv_mem"].any()
    for method in ("MemPO", "GRPO"):
        assert method in resumed.table and method in Path(resumed.report).read_text()


def test_a_variant_was_measured_from_the_last_checkpoint_of_its_source(resumed):
    source, back = (resumed.children[f"{v} seed 3"] for v in ("mempo", "back"))
    params = tracker().run_info(back.run_id).params
    assert params["policy.model"] == source.checkpoint
    assert Path(source.checkpoint).parts[-3:] == (source.run_id, "checkpoints", "000001")
    assert params["agent.history"] == "all"
    # The first step has no history to look at, and the weights are the same.
    steps = [
        pd.read_parquet(next(Path(r.folder).glob("iterations/*/evaluate-n1-greedy.parquet")))
        for r in (source, back)
    ]
    one, other = (table[table.step == 0].reset_index(drop=True) for table in steps)
    pd.testing.assert_frame_equal(
        one[["question_id", "prompt_ids", "output_ids"]],
        other[["question_id", "prompt_ids", "output_ids"]],
    )


def test_a_failed_child_is_in_the_tags_and_on_the_page_with_its_reason(resumed):
    from tasks.records import read_json

    assert list(resumed.failed) == ["broken seed 3"]
    assert "audit.max_diff" in resumed.failed["broken seed 3"]
    assert "audit.max_diff" in tracker().run_info(resumed.run_id).tags["mempo.failed"]
    (child,) = tracker().find({"mempo.variant": "broken"}, "FAILED")
    assert "audit.max_diff" in child.tags["mempo.reason"]
    page = Path(resumed.report).read_text()
    assert "broken seed 3 failed" in page and "audit.max_diff" in page
    assert "mempo seed 3 was run anew" in page and "KILLED" in page
    compared = read_json(tracker().connect()[0], resumed.run_id, "compared.json")
    assert compared["runs"] == [child.run_id for child in resumed.children.values()]


def test_failed_children_are_listed_on_the_terminal(study, resumed, monkeypatch, capsys):
    from contextlib import nullcontext

    from flows import ablate, run

    given = []
    monkeypatch.setattr(run, "services", lambda experiment: nullcontext())
    monkeypatch.setattr(ablate, "ablate", lambda *arguments: given.append(arguments) or resumed)
    assert run.ablate(study, "auto", "mempo ablate mine.yaml").failed == resumed.failed
    assert given == [(study, resumed.run_id, "mempo ablate mine.yaml")]  # failed ones may go on
    shown = capsys.readouterr().out
    assert f"FAILED  broken seed 3: {resumed.failed['broken seed 3']}" in shown
    assert resumed.report in shown


def test_a_study_that_is_not_done_is_reported_without_what_was_run_anew(resumed):
    from flows.report import _latest

    latest = [tracker().run_info(run_id) for run_id in _latest(tracker(), resumed.run_id)]
    assert sorted((run.tags["mempo.variant"], run.status) for run in latest) == [
        ("back", "FINISHED"),
        ("broken", "FAILED"),
        ("grpo", "FINISHED"),
        ("mempo", "FINISHED"),
        ("start", "FINISHED"),
    ]


def test_the_choice_of_a_best_variant_says_that_it_was_made_on_what_is_reported():
    from conf.load import load
    from conf.study import Best, Child
    from flows.ablate import _best
    from flows.recording import RunResult

    children = tuple(Child("MemPO", v, 1, load("test")) for v in ("low", "high"))
    scores = {"low": 0.25, "high": 0.5}
    key = "eval/n2/em"
    done = {c.name: RunResult("id", "folder", metrics={key: scores[c.variant]}) for c in children}
    best = Best(metric="em", objectives=2, mode="greedy")
    chosen, notes = _best(Study("s", "", children, best), done)
    assert chosen == ["high seed 1"]
    (note,) = notes
    assert note.startswith(f"MemPO is high, the best by {key}: low 0.250, high 0.500")
    assert "the very questions that are reported" in note
