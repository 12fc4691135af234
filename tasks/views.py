"""The view in which MLflow's UI compares runs: the curves one wants, on top and at once.

MLflow keeps a shared view of an experiment as its tag `mlflow.sharedViewState.KEY`, and shows it
at `?viewStateShareKey=KEY`. The metrics that the view does not name follow below it as ever.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from mlflow import MlflowClient

KEY = "mempo"
TAG = "mlflow.sharedViewState"

# Sections of charts, a chart a metric.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Learning": (
        "reward/mean",
        "memory/p_answer",
        "loss/kl",
        "reward/em",
        "cost/usd",
        "group/zero_std_frac",
    ),
    "Evaluation": tuple(
        f"{area}/n{k}/{name}"
        for k in (1, 2, 4, 6)
        for area, name in (
            ("eval", "em"),
            ("eval_sampled", "em"),
            ("eval_sampled", "f1"),
        )
    ),
}
SMOOTHNESS = 50  # of 100: iterations differ in their questions, and cycle through objectives


def view_state(search: str = "") -> dict[str, Any]:
    """The state of MLflow's experiment page, as its own button "share" writes it."""
    sections, charts = [], []
    for name, wanted in SECTIONS.items():
        section = _id(name)
        sections.append({"uuid": section, "name": name, "display": True, "isReordered": True})
        charts += [_line(section, metric) for metric in wanted]
    return {
        "searchFilter": search,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [
            "attributes.`Source`",
            "params.`seed`",
            "metrics.`reward/mean`",
            "tags.`mempo.algorithm`",
        ],
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "viewMaximized": False,
        "runListHidden": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {
            "xAxisKey": "step",
            "lineSmoothness": SMOOTHNESS,
            "selectedXAxisMetricKey": "",
        },
    }


def share(client: MlflowClient, experiment_id: str, search: str = "") -> str:
    """Give the experiment the shared view of the runs that `search` finds; returns its key.

    A view that is there already is brought up to date.
    """
    key = f"{KEY}-{sha256(search.encode()).hexdigest()[:12]}" if search else KEY
    tag, state = f"{TAG}.{key}", packed(view_state(search))
    if client.get_experiment(experiment_id).tags.get(tag) != state:
        client.set_experiment_tag(experiment_id, tag, state)
    return key


def packed(state: dict[str, Any]) -> str:
    """A state as MLflow's pages read it; databases take 5,000 characters of a tag."""
    return "deflate;" + b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()


def these(run_ids: Sequence[str]) -> str:
    """The search string that finds these runs."""
    return f"attributes.run_id IN ({', '.join(repr(str(run_id)) for run_id in run_ids)})"


def compare_url(base: str, experiment_id: str, key: str = KEY) -> str:
    """The page of MLflow at `base` that draws the runs of a shared view; base '' is relative.

    >>> compare_url("http://127.0.0.1:5000", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=mempo&compareRunsMode=CHART'
    """
    start = f"{base.rstrip('/')}/" if base else ""
    return (
        f"{start}#/experiments/{experiment_id}/runs?viewStateShareKey={key}&compareRunsMode=CHART"
    )


def _line(section: str, metric: str) -> dict[str, Any]:
    return {
        "uuid": _id(f"{section}/{metric}"),
        "type": "LINE",
        "runsCountToCompare": 10,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": SMOOTHNESS,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _id(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"mempo/{name}"))
