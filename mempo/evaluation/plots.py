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
from matplotlib.ticker import MaxNLocator

from mempo.evaluation.canvas import Style, canvas, dress, finding, legend, palette
from mempo.evaluation.canvas import save as save
from mempo.evaluation.stats import (
    buckets,
    checked,
    mean_interval,
    ordered,
    require_columns,
    run_keys,
)

_TAIL = 5  # iterations that a learning curve's finding averages over
_JUDGED = ("reward/mean", "memory/p_answer")  # more is better: worth naming who leads

_LEARNING = {  # metric -> (quantity, unit)
    "reward/mean": ("Reward", "reward"),
    "memory/p_answer": ("P(answer | memory)", "probability"),
    "rollout/steps": ("Steps per trajectory", "steps"),
    "memory/tokens": ("Length of a memory", "tokens"),
}
_HEALTH = {
    "loss/kl": ("KL to the start policy", "nats per token"),
    "loss/entropy": ("Entropy", "nats per token"),
    "loss/clip_frac": ("Clipped tokens", "share"),
    "loss/grad_norm": ("Gradient norm", "norm"),
    "group/zero_std_frac": ("Groups without a signal", "share"),
    "rollout/truncated_frac": ("Truncated trajectories", "share"),
    "audit/logprob_diff_max": ("Largest log-prob difference to the engine", "nats"),
    "time/iteration_s": ("Time of an iteration", "seconds"),
}
_QUALITY = {
    "memory/p_full": ("P(answer | full history)", "probability"),
    "memory/beats_history_frac": ("Memories worth more than the history", "share"),
    "memory/facts_kept_frac": ("Facts kept from memory to memory", "share"),
    "memory/facts_held_frac": ("Facts shown that the memory holds", "share"),
}
_COLD_START = {"sft/loss": ("Loss of the cold start", "nats per token")}
LEARNING_METRICS = tuple(_LEARNING)
HEALTH_METRICS = tuple(_HEALTH)
QUALITY_METRICS = tuple(_QUALITY)
COLD_START_METRICS = tuple(_COLD_START)
DRAWN = (*LEARNING_METRICS, *HEALTH_METRICS, *QUALITY_METRICS, *COLD_START_METRICS)
_CURVES = {**_LEARNING, **_HEALTH, **_QUALITY, **_COLD_START}
_SCORES = {
    "em": ("Exact match", "share of objectives"),
    "f1": ("Word F1", "F1 (0 to 1)"),
    "p_answer": ("P(answer | memory)", "probability"),
}
_TOKENS = {"tt": ("Total tokens", "tokens per task"), "pt": ("Peak tokens", "tokens per step")}


def learning_curves(
    curves: pd.DataFrame,
    *,
    metrics: Sequence[str] = LEARNING_METRICS,
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Each of `metrics` that `curves` has, over iterations: the mean over seeds, seeds faint.

    `curves`: `method, seed, iteration, metric, value`. The data returned has the same columns,
    with `seed` missing in the rows of the mean. Raises ValueError when none of the metrics is
    there.
    """
    require_columns(curves, ("method", "seed", "iteration", "metric", "value"), name="curves")
    rows = curves.astype({"value": float, "seed": "Int64"})
    rows = rows[rows["metric"].isin(metrics) & np.isfinite(rows["value"])]
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    if not present:
        raise ValueError(f"curves has none of the metrics {list(metrics)}")
    means = rows.groupby(["method", "iteration", "metric"])["value"].mean().reset_index()
    styles = styles or palette(rows["method"])
    figure, panels = canvas(len(present))
    for axes, metric in zip(panels, present, strict=True):
        quantity, unit = _CURVES.get(metric, (metric, ""))
        last: dict[str, float] = {}
        for method in ordered(rows["method"]):
            one = rows[(rows["method"] == method) & (rows["metric"] == metric)]
            mean = means[(means["method"] == method) & (means["metric"] == metric)]
            if one.empty:
                continue
            look = styles[method]
            if one.groupby(run_keys(one)).ngroups > 1:
                for _, seed in one.sort_values("iteration").groupby(run_keys(one)):
                    axes.plot(
                        seed["iteration"], seed["value"], color=look.colour, alpha=0.4, lw=0.8
                    )
            axes.plot(
                mean["iteration"],
                mean["value"],
                color=look.colour,
                linestyle=look.line,
                lw=2,
                marker=look.marker,
                markersize=5,
                markevery=max(1, len(mean) // 6),
                label=method,
            )
            last[method] = float(mean["value"].tail(_TAIL).mean())
        tail = min(_TAIL, means[means["metric"] == metric]["iteration"].nunique())
        leader = finding(last, f"over the last {tail} iterations") if metric in _JUDGED else ""
        dress(axes, title=quantity, subtitle=leader, ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("optimiser step" if set(present) <= set(_COLD_START) else "iteration")
    legend(figure, panels)
    return figure, pd.concat([rows, means], ignore_index=True)


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
