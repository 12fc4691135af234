"""Figures from tables. Each function returns the figure and the numbers behind it.

Drawn with matplotlib's objects and the Agg canvas only: no pyplot, no global state, no display.
Panels are stacked, never side by side, so that a figure stays readable on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mempo.evaluation.canvas import Style, canvas, dress, finding, legend, palette
from mempo.evaluation.canvas import save as save
from mempo.evaluation.stats import (
    buckets,
    checked,
    mean_interval,
    ordered,
    run_keys,
)

_SCORES = {
    "em": ("Exact match", "share of objectives"),
    "f1": ("Word F1", "F1 (0 to 1)"),
    "p_answer": ("P(answer | memory)", "probability"),
}
_TOKENS = {"tt": ("Total tokens", "tokens per task"), "pt": ("Peak tokens", "tokens per step")}


def score_by_objectives(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Exact match, F1 and P(answer | memory) against the number of objectives K.

    Lines are means over seeds and questions, bars 95 % intervals, small points single seeds.
    The data: `method, objectives, metric, seed, value, low, high`, `seed` missing for the mean.
    """
    return _by_objectives(evaluations, _SCORES, mode=mode, styles=styles)


def tokens_by_objectives(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Total and peak tokens of a task against K; data as in `score_by_objectives`."""
    return _by_objectives(evaluations, _TOKENS, mode=mode, styles=styles)


def probability_buckets(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    edges: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """P(answer | last memory) in buckets: share of tasks and exact match per bucket.

    The data: `method, low, high, n, share, mean`. Raises ValueError where no task has a P.
    """
    rows = of_mode(evaluations, mode)
    rows = rows[rows["p_answer"].notna()]
    if rows.empty:
        raise ValueError("no evaluated task has P(answer | memory); do the agents keep a memory?")
    data = _bucket_table(rows, "p_answer", "em", edges)
    figure, (top, bottom) = canvas(2)
    labels = [f"{low:g}-{high:g}" for low, high in pairwise(edges)]
    _draw_buckets(top, bottom, data, labels, styles or palette(evaluations["method"]))
    dress(top, title="How sure the memory is of the answer", ylabel="share of tasks")
    dress(bottom, title="How often that answer is then right", ylabel="exact match")
    bottom.set_xlabel("P(answer | last memory)")
    legend(figure, [top])
    return figure, data


def steps_buckets(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    edges: Sequence[int] | None = None,
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Number of steps in buckets: share of tasks and mean P(answer | last memory) per bucket.

    Bucket i holds edges[i] to edges[i+1] - 1 steps; by default up to eight of equal width.
    The data: `method, low, high, n, share, mean`, `high` excluded.
    """
    rows = of_mode(evaluations, mode)
    if edges is None:
        first, last = int(rows["steps"].min()), int(rows["steps"].max())
        width = -(-(last - first + 1) // 8)
        edges = range(first, last + width + 1, width)
    data = _bucket_table(rows, "steps", "p_answer", edges)
    labels = [f"{low}" if high - low == 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    figure, (top, bottom) = canvas(2)
    _draw_buckets(top, bottom, data, labels, styles or palette(evaluations["method"]))
    dress(top, title="Steps a task took", ylabel="share of tasks")
    dress(bottom, title="How sure the memory then is", ylabel="mean P(answer | memory)")
    bottom.set_xlabel("steps")
    legend(figure, [top])
    return figure, data


def of_mode(evaluations: pd.DataFrame, mode: str) -> pd.DataFrame:
    """The checked rows of a mode; ValueError where there are none."""
    rows = checked(evaluations)
    rows = rows[rows["mode"] == mode]
    if rows.empty:
        raise ValueError(f"evaluations has no rows of mode {mode!r}")
    return rows


def _by_objectives(
    evaluations: pd.DataFrame,
    quantities: Mapping[str, tuple[str, str]],
    *,
    mode: str,
    styles: Mapping[str, Style] | None,
) -> tuple[Figure, pd.DataFrame]:
    rows = of_mode(evaluations, mode)
    present = [metric for metric in quantities if rows[metric].notna().any()]
    found = [points(rows, metric, ("method", "objectives")) for metric in present]
    data = pd.concat(found, ignore_index=True)
    styles = styles or palette(evaluations["method"])
    methods, objectives = ordered(rows["method"]), sorted(rows["objectives"].unique())
    gap = min(np.diff(objectives), default=1)
    figure, panels = canvas(len(present))
    for axes, metric in zip(panels, present, strict=True):
        quantity, unit = quantities[metric]
        last: dict[str, float] = {}
        for i, method in enumerate(methods):
            one = data[(data["method"] == method) & (data["metric"] == metric)]
            mean, seeds = one[one["seed"].isna()], one[one["seed"].notna()]
            if mean.empty:
                continue
            look = styles[method]
            # Methods stand a little beside each other, or their intervals would hide each other.
            shift = gap * 0.06 * (i - (len(methods) - 1) / 2)
            bars = np.nan_to_num([mean["value"] - mean["low"], mean["high"] - mean["value"]])
            axes.errorbar(
                mean["objectives"] + shift,
                mean["value"],
                yerr=np.maximum(bars, 0.0),
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markersize=6,
                lw=2,
                elinewidth=1,
                capsize=2,
                label=method,
            )
            if seeds.groupby("objectives").size().max() > 1:
                axes.plot(
                    seeds["objectives"] + shift, seeds["value"], ".", color=look.colour, alpha=0.5
                )
            if objectives[-1] in set(mean["objectives"]):
                last[method] = float(mean.set_index("objectives")["value"][objectives[-1]])
        leader = finding(last, f"at K = {objectives[-1]}", lowest=quantities is _TOKENS)
        dress(axes, title=quantity, subtitle=leader, ylabel=unit)
        axes.set_xticks(objectives)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("objectives per task (K)")
    legend(figure, panels)
    return figure, data


def points(rows: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Means of `metric` with intervals per value of the columns `by`, and per seed without.

    Columns: `by`, then `metric, seed, value, low, high`; `seed` is missing in the rows of means.
    Where a seed went on from several cold starts each of its runs has a row, with its `start`.
    """
    runs = run_keys(rows)
    found: list[dict[str, object]] = []
    for where, group in rows.groupby(list(by)):
        if group[metric].isna().all():
            continue
        here: dict[str, object] = {**dict(zip(by, where, strict=True)), "metric": metric}
        whole = mean_interval(group, metric, key=(metric, *(str(value) for value in where)))
        found.append(
            here | {"seed": None, "value": whole.mean, "low": whole.low, "high": whole.high}
        )
        questions = group.groupby([*runs, "question_id"], as_index=False)[metric].mean()
        means = questions.groupby(runs, as_index=False)[metric].mean()
        for run in means.rename(columns={metric: "value"}).to_dict("records"):
            found.append({**here, **run, "low": np.nan, "high": np.nan})
    return pd.DataFrame(found).astype({"seed": "Int64", "low": float, "high": float})


def _bucket_table(
    rows: pd.DataFrame, value: str, outcome: str, edges: Sequence[float]
) -> pd.DataFrame:
    parts: list[pd.DataFrame] = []
    for method in ordered(rows["method"]):
        one = rows[rows["method"] == method]
        part = buckets(one[value], one[outcome], edges)
        part.insert(0, "method", method)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _draw_buckets(
    top: Axes,
    bottom: Axes,
    data: pd.DataFrame,
    labels: Sequence[str],
    styles: Mapping[str, Style],
) -> None:
    """Shares as bars above, outcomes as points below, methods side by side in each bucket."""
    methods = ordered(data["method"])
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        one, look = data[data["method"] == method], styles[method]
        x = np.arange(len(one)) + width * (i - (len(methods) - 1) / 2)
        top.bar(x, one["share"], width=width * 0.92, color=look.colour, label=method)
        bottom.plot(
            x,
            one["mean"],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=6,
            lw=1.5,
        )
    for axes in (top, bottom):
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set_ylim(0, None if axes is top else 1.04)
