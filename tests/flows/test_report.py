"""Reports of runs that stand in MLflow with their evaluations, without training any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.report import report_runs
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other when MLflow loads its tables.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def tracker(home: Path, request: pytest.FixtureRequest) -> Tracker:
    return Tracker(experiment=request.node.name, home=str(home))


def evaluated(
    tracker: Tracker, method: str, f1: float, seed: int = 0, start: str = "", **params: Any
) -> str:
    """A finished run with an evaluation of two questions."""
    defaults = {"agent.kind": "self_memory", "agent.history": "1", "iterations": 24}
    run_id = tracker.start(
        name=f"{method} {seed}",
        kind="train",
        params={**defaults, "policy.model": "start", **params},
        tags={"mempo.method": method, "mempo.seed": str(seed), "mempo.start": start},
    )
    same = {"mode": "greedy", "objectives": 2, "em": 0.0, "format": 1.0, "p_answer": 0.5}
    rows = [
        {"question_id": q, "f1": f1, "tt": 10, "pt": 5, "steps": 3, "status": "answered", **same}
        for q in "ab"
    ]
    tracker.log_text(run_id, json.dumps(rows), "evaluation/tasks.json")
    tracker.finish(run_id, "FINISHED")
    return run_id


def test_figure_d_comes_from_the_params_of_the_runs(tracker: Tracker, tmp_path: Path) -> None:
    history = "agent.history"
    runs = [
        evaluated(tracker, "ours", 0.9),  # trained here: what was evaluated is not in its params
        evaluated(tracker, "kept: 1", 0.25, **{"iterations": 0, "policy.model": "w"}),
        evaluated(tracker, "kept: 3", 0.5, **{"iterations": 0, "policy.model": "w", history: "3"}),
        evaluated(
            tracker, "ReAct", 0.75, **{"iterations": 0, "agent.kind": "react", history: "all"}
        ),
    ]
    page, _ = report_runs(tracker, runs, tmp_path)
    assert "(d) One policy" in page.read_text()
    data = pd.read_csv(tmp_path / "figures" / "score_by_history.csv", dtype={"history": str})
    f1 = data[data["seed"].isna() & (data["metric"] == "f1")]
    assert dict(zip(f1["history"], f1["value"], strict=True)) == {"1": 0.25, "3": 0.5}


def test_a_seed_that_went_on_from_two_cold_starts_is_two_runs(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [
        evaluated(tracker, method, f1, seed=7, **{"policy.model": start})
        for method, f1, start in (
            ("GRPO", 0.25, "one"),
            ("MemPO", 0.75, "one"),
            ("GRPO", 0.5, "two"),
            ("MemPO", 0.625, "two"),
        )
    ]
    _, table = report_runs(tracker, runs, tmp_path)
    assert "F1 +0.312" in table and "(by seed: +0.500 +0.125)" in table
    page = (tmp_path / "report.html").read_text()
    assert "one seed 7: +0.500, two seed 7: +0.125" in page


def test_a_study_s_names_of_its_cold_starts_are_shown(tracker: Tracker, tmp_path: Path) -> None:
    runs = [
        evaluated(tracker, method, f1, 7, start, **{"policy.model": f"models/{start}"})
        for method, f1, start in (
            ("GRPO", 0.25, "a"), ("MemPO", 0.75, "a"), ("GRPO", 0.5, "b"), ("MemPO", 0.625, "b")
        )
    ]  # fmt: skip
    report_runs(tracker, runs, tmp_path)
    assert "a seed 7: +0.500, b seed 7: +0.125" in (tmp_path / "report.html").read_text()


def test_cold_starts_go_unnamed_where_the_seed_tells_runs_apart(
    tracker: Tracker, tmp_path: Path
) -> None:
    # Each evaluates a checkpoint of its own: the pair is still that of the seed.
    runs = [
        evaluated(tracker, method, f1, seed=7, **{"policy.model": method, "iterations": 0})
        for method, f1 in (("GRPO", 0.25), ("MemPO", 0.75))
    ]
    _, table = report_runs(tracker, runs, tmp_path)
    assert "MemPO - GRPO, K = 2, greedy" in table and "F1 +0.500" in table
