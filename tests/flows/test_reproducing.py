"""What a run was made of is found again, what has changed is told, and numbers are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from conf.load import load
from conf.text import ConfigError
from flows.fingerprint import inputs, packages
from flows.reproducing import differences, origin_of
from mempo.config import Experiment

# Prefect, Ray and MLflow warn in ways that are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")

ROWS = ["run_id", "iteration", "metric", "value"]


def small(start: str) -> Experiment:
    settings = ["cluster.cpus=2", "iterations=2", "evaluate.before=false", start]
    return load("test", overrides=[*settings, "evaluate.objectives=[1]"], seed=3)


def test_packages_are_requirements_of_pip() -> None:
    lines = packages().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))
    assert f"pandas=={pd.__version__}" in lines


def test_files_and_models_have_a_fingerprint(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text("one")
    settings = ["environment.name=dataset", f"environment.questions={questions}"]
    settings.append("environment.corpus=builtin:wiki_multihop/corpus.jsonl")
    first = inputs(load("demo", overrides=settings))
    assert set(first) == {"environment.questions", "environment.corpus", "policy.model"}
    questions.write_text("two")
    second = inputs(load("demo", overrides=settings))
    assert {name for name in first if first[name] != second[name]} == {"environment.questions"}
    assert inputs(load("test", overrides=["policy.model=tiny"])) == {}


def test_points_are_compared_one_by_one_and_times_are_not() -> None:
    rows = [("a", 1, "loss", 0.5), ("b", 1, "loss", 0.5), ("a", 1, "time/x", 1.0)]
    rows.append(("b", 1, "time/x", 2.0))
    rows += [("a", 1, "system/x", 1.0), ("b", 2, "system/x", 2.0)]
    assert differences(pd.DataFrame(rows, columns=ROWS), "a", "b") == (1, [])
    rows += [("a", 2, "loss", 0.5), ("b", 2, "loss", 0.75), ("a", 1, "em", 1.0)]
    count, lines = differences(pd.DataFrame(rows, columns=ROWS), "a", "b")
    assert count == 3
    assert lines == [
        "em: 1 of 1 points are in one run only",
        "loss: 1 of 2 points differ, at most by 0.25",
    ]


def test_a_run_comes_out_again_and_what_has_changed_is_named(
    cold: SimpleNamespace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train
    from tasks.tracking import Tracker

    tracker = Tracker()
    run = train(small(cold.start), name="first")
    origin = origin_of(tracker, run.run_id)
    assert origin.experiment == small(cold.start)
    assert [line for line in origin.changed if not line.startswith("commit")] == []
    assert any(line.startswith("policy.model") for line in origin.facts)
    again = train(origin.experiment, name="again")
    count, lines = differences(tracker.curves([run.run_id, again.run_id]), run.run_id, again.run_id)
    assert lines == [] and count > 50

    (Path(cold.result.checkpoint) / "notes.txt").write_text("changed")
    monkeypatch.setattr("flows.reproducing.packages", lambda: packages() + "zzz==1\n")
    monkeypatch.setattr("flows.reproducing.git_commit", lambda: "0123")
    commit, model, installed = origin_of(tracker, run.run_id).changed
    assert commit == "commit: this checkout is at 0123"
    assert model.startswith("policy.model: ") and " then, " in model
    assert installed == "packages: zzz none -> 1"


def test_what_cannot_be_reproduced_is_refused(home: Path) -> None:
    from tasks.tracking import Tracker

    tracker = Tracker()
    with pytest.raises(ConfigError, match=r"reproduce abc: .*; `mempo up` shows the runs"):
        origin_of(tracker, "abc")
    study = tracker.start(name="s", kind="ablate", params={}, tags={})
    with pytest.raises(ConfigError, match="a run of kind 'ablate' is many runs"):
        origin_of(tracker, study)
    live = tracker.start(name="l", kind="train", params={}, tags={})
    with pytest.raises(ConfigError, match="that run is RUNNING, so there is nothing to compare"):
        origin_of(tracker, live)
    tracker.finish(live, "FINISHED")
    with pytest.raises(ConfigError, match=r"the run lacks config\.yaml or packages\.txt"):
        origin_of(tracker, live)
