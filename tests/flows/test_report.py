"""Reports of runs that stand in MLflow with their evaluations, without training any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.report import COMPARED, report_runs
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
    tracker: Tracker, method: str, f1: float, seed: int = 0, start: str = "", /, **params: Any
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


def test_a_trained_run_is_the_row_of_its_own_history(tracker: Tracker, tmp_path: Path) -> None:
    first, second = (evaluated(tracker, "history 1", f1, seed) for seed, f1 in ((1, 0.5), (2, 0.7)))
    later = [
        evaluated(
            tracker, "history 3", 0.25, seed,
            **{"iterations": 0, "policy.model": f"/elsewhere/store/{run}/checkpoints/000024"},
            **{"agent.history": "3"},
        )
        for seed, run in ((1, first), (2, second))
    ]  # fmt: skip
    other = evaluated(tracker, "GRPO", 0.1)  # trained, too, but never evaluated otherwise
    report_runs(tracker, [first, second, *later, other], tmp_path)
    data = pd.read_csv(tmp_path / "figures" / "score_by_history.csv", dtype={"history": str})
    f1 = data[data["seed"].isna() & (data["metric"] == "f1")]
    assert dict(zip(f1["history"], f1["value"], strict=True)) == pytest.approx(
        {"1": 0.6, "3": 0.25}
    )


def test_an_untrained_policy_is_compared_with_every_trained_run(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [evaluated(tracker, "GRPO", f1, seed) for seed, f1 in ((1, 0.9), (2, 0.5), (3, 0.5))]
    runs.append(evaluated(tracker, "ReAct", 0.7, 1, **{"iterations": 0, "agent.kind": "react"}))
    _, table = report_runs(tracker, runs, tmp_path)
    assert "ReAct - GRPO, K = 2, greedy" in table
    assert "by seed: -0.200 +0.200 +0.200" in table


def test_runs_of_one_method_with_other_settings_are_told_apart(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [
        evaluated(tracker, "GRPO", 0.25, 1),
        evaluated(tracker, "MemPO", 0.5, 1, **{"memory.weight": 1.0, "loss.clip": 0.2}),
        evaluated(tracker, "MemPO", 0.75, 1, **{"memory.weight": 0.5, "loss.clip": 0.1}),
        evaluated(tracker, "MemPO", 1.0, 2, **{"memory.weight": 0.5, "loss.clip": 0.1}),
    ]
    page, table = report_runs(tracker, runs, tmp_path)
    summary = pd.read_csv(tmp_path / "summary.csv").set_index("method")["f1"].to_dict()
    assert summary == {"GRPO": 0.25, "MemPO (memory.weight=1.0)": 0.5,
                       "MemPO (memory.weight=0.5)": 0.875}  # fmt: skip
    note = "the runs of MemPO differ in memory.weight, loss.clip and are told apart"
    assert note in page.read_text() and note in table
    # What decides no result changes no name.
    same = [evaluated(tracker, "MemPO", 0.5, 4, preset=p, **{"cluster.cpus": p}) for p in "ab"]
    _, table = report_runs(tracker, same, tmp_path)
    assert "MemPO " in table and "MemPO (" not in table
    assert "MemPO seed 4 was run 2 times: its runs count as one" in table


def test_the_page_of_a_cold_start_shows_its_loss(tracker: Tracker, tmp_path: Path) -> None:
    run_id = tracker.start(name="sft", kind="sft", params={}, tags={"mempo.method": "SFT"})
    for step, loss in ((20, 2.5), (40, 1.5)):
        tracker.log_metrics(run_id, {"sft/loss": loss, "cost/usd": 1.0}, step)
    tracker.finish(run_id, "FINISHED")
    page, _ = report_runs(tracker, [run_id], tmp_path)
    assert "Learning of the cold start" in page.read_text()
    data = pd.read_csv(tmp_path / "figures" / "cold_start.csv")
    assert data.dropna(subset="seed")[["iteration", "value"]].to_numpy().tolist() == [
        [20, 2.5], [40, 1.5]
    ]  # fmt: skip
    assert set(data["metric"]) == {"sft/loss"}


def test_every_health_and_memory_metric_of_a_run_is_drawn(tracker: Tracker, tmp_path: Path) -> None:
    run_id = evaluated(tracker, "MemPO", 0.5)
    health = {"loss/grad_norm": 1.0, "group/zero_std_frac": 0.5, "rollout/truncated_frac": 0.25}
    quality = {"memory/p_full": 0.5, "memory/beats_history_frac": 0.75,
               "memory/facts_kept_frac": 1.0}  # fmt: skip
    tracker.log_metrics(run_id, {**health, **quality}, 1)
    report_runs(tracker, [run_id], tmp_path)
    for figure, drawn in (("training_health", health), ("memory_quality", quality)):
        data = pd.read_csv(tmp_path / "figures" / f"{figure}.csv")
        assert dict(zip(data["metric"], data["value"], strict=True)) == drawn


@pytest.mark.parametrize(("algorithm", "shown"), [("dpo", False), ("grpo", True)])
def test_advantages_that_train_nothing_are_not_shown(
    tracker: Tracker, tmp_path: Path, algorithm: str, shown: bool
) -> None:
    run_id = evaluated(tracker, "External + DPO", 0.5)
    tracker.set_tags(run_id, {"mempo.algorithm": algorithm})
    step = {"memory": "m", "text": "t", "action": "answer", "query_or_answer": "a",
            "observation": "", "adv_mem": -2.0, "prompt_tokens": 3, "output_tokens": 4}  # fmt: skip
    kept = {"question": "q", "gold": "a", "answer": "a", "status": "answered", "reward": 1.0,
            "f1": 1.0, "em": 1.0, "advantage": 1.0, "steps": [step]}  # fmt: skip
    tracker.log_text(run_id, json.dumps([kept]), "training/trajectories.json")
    page, _ = report_runs(tracker, [run_id], tmp_path)
    html = page.read_text()
    assert ("blue is positive" in html) is shown and ("A\u1d39 -2.00" in html) is shown


def test_a_seed_that_went_on_from_two_cold_starts_is_two_runs(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [
        evaluated(tracker, method, f1, 7, **{"policy.model": start})
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
        evaluated(tracker, method, f1, 7, **{"policy.model": method, "iterations": 0})
        for method, f1 in (("GRPO", 0.25), ("MemPO", 0.75))
    ]
    _, table = report_runs(tracker, runs, tmp_path)
    assert "MemPO - GRPO, K = 2, greedy" in table and "F1 +0.500" in table


def test_differences_are_to_the_baseline_that_is_asked_for(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [evaluated(tracker, method, f1) for method, f1 in (("GRPO", 0.25), ("Mine", 0.75))]
    assert "Mine - GRPO, K = 2" in report_runs(tracker, runs, tmp_path)[1]
    page, table = report_runs(tracker, runs, tmp_path, baseline="Mine")
    assert "GRPO - Mine, K = 2, greedy: EM +0.000 [+0.000, +0.000]; F1 -0.500 [" in table
    assert "difference to Mine" in page.read_text()
    with pytest.raises(ValueError, match="--baseline: there is no method 'Mime' here, only GRPO, "):
        report_runs(tracker, runs, tmp_path, baseline="Mime")


def test_the_recorded_command_has_a_baseline_where_it_is_not_the_study_s_own(
    tracker: Tracker, tmp_path: Path
) -> None:
    runs = [evaluated(tracker, method, f1) for method, f1 in (("GRPO", 0.25), ("Mine", 0.75))]
    studies = [tracker.start(name=n, kind="ablate", params={}, tags={}) for n in ("a", "b")]
    for study, own in zip(studies, ("Mine", ""), strict=True):
        compared = {"title": "t", "runs": runs, "notes": [], "baseline": own}
        tracker.log_text(study, json.dumps(compared), COMPARED)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:x -->\n<!-- end:x -->\n")

    def recorded(**asked: str) -> str:
        report_runs(tracker, studies[:1], tmp_path / "page", into=f"{readme}#x", **asked)
        return readme.read_text()

    assert "GRPO - Mine" in recorded() and "--baseline" not in recorded()
    assert "--baseline 'GRPO'`" in recorded(baseline="GRPO")
    with pytest.raises(ValueError, match="the studies compare with Mine and GRPO; choose by"):
        report_runs(tracker, studies, tmp_path / "page")


def test_an_unknown_run_leaves_no_empty_report(tracker: Tracker, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nope"):
        report_runs(tracker, ["nope"], tmp_path / "page")
    assert not (tmp_path / "page").exists()
