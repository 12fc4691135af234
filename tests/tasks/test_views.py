import base64
import doctest
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Dataset, DatasetInput

from tasks import views
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other.
pytestmark = pytest.mark.filterwarnings("default")


def unpacked(tag: str) -> dict[str, Any]:
    return json.loads(zlib.decompress(base64.b64decode(tag.removeprefix("deflate;"))))


def test_the_examples_in_the_texts_hold():
    assert doctest.testmod(views).failed == 0


def test_the_wanted_curves_are_drawn_first():
    state = views.view_state()
    drawn = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert drawn[:3] == ["reward/mean", "memory/p_answer", "loss/kl"]
    assert {"cost/usd", "eval/n2/em", "eval_sampled/n4/f1"} <= set(drawn)
    sections = [section["uuid"] for section in state["compareRunSections"]]
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == set(sections)
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(drawn)
    tag = views.packed(views.view_state(views.these(["0" * 32] * 50)))
    assert len(tag) < 5000  # what Postgres takes


def test_an_experiment_has_the_view_from_its_first_run_on(tmp_path):
    tracker = Tracker(home=str(tmp_path))
    run_id = tracker.start(name="r", kind="train", params={}, tags={})
    client, experiment_id = tracker.connect()
    tags = client.get_experiment(experiment_id).tags
    assert unpacked(tags["mlflow.sharedViewState.mempo"]) == views.view_state()

    search = views.these([run_id, "0a1b"])
    key = views.share(client, experiment_id, search)
    assert key == views.share(client, experiment_id, search) != views.KEY
    tags = client.get_experiment(experiment_id).tags
    assert unpacked(tags[f"mlflow.sharedViewState.{key}"])["searchFilter"] == search
    assert [run.info.run_id for run in client.search_runs([experiment_id], search)] == [run_id]
    assert f"viewStateShareKey={key}&" in views.compare_url("http://host", experiment_id, key)


def test_every_search_string_of_the_documentation_finds_the_runs_it_is_for(tmp_path):
    text = (Path(views.__file__).parents[1] / "docs" / "mlflow.md").read_text(encoding="utf-8")
    searches = "\n".join(re.findall(r"```mlflow\n(.*?)```", text, re.DOTALL)).split("\n")
    tracker = Tracker(home=str(tmp_path))
    tags = {
        "mempo.algorithm": "mempo",
        "mempo.agent": "self_memory",
        "mempo.preset": "demo",
        "mempo.seed": "7",
        "mempo.config_sha256": "c0ffee",
        "mempo.reproduces": "0a1b",
        "mempo.reason": "RuntimeError: out of memory on node 3",
    }
    params = {"learner.lr": 0.0006, "memory.reward": "posterior", "rollout.group_size": 16}
    data = [DatasetInput(Dataset("atlas, train", "d", "atlas", "{}"))]
    runs = {}
    for status in ("FINISHED", "FAILED", "RUNNING"):
        run_id = tracker.start(
            name="demo mempo seed 7",
            kind="train",
            params=params,
            tags=tags,
            parent="0a1b",
            datasets=data,
        )
        tracker.log_metrics(
            run_id,
            {"reward/mean": 0.7, "memory/p_answer": 0.5, "cost/usd": 0.01}
            | {"eval_sampled/n4/em": 0.6},
            1,
        )
        if status != "RUNNING":
            tracker.finish(run_id, status)
        runs[run_id] = status
    other = tracker.start(name="other", kind="sft", params={}, tags={})
    tracker.finish(other, "FINISHED")
    client, experiment_id = tracker.connect()
    searches = [search for search in searches if search]
    assert len(searches) > 12
    for search in searches:
        found = {run.info.run_id for run in client.search_runs([experiment_id], search)}
        assert found and other not in found, search
