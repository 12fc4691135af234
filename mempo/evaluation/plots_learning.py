"""Figures of what happens during training, from the metrics of every iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mempo.evaluation.canvas import Style, canvas, dress, finding, legend, palette
from mempo.evaluation.stats import ordered, require_columns, run_keys

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


def learning_curves(
    curves: pd.DataFrame,
    *,
    metrics: Sequence[str] = LEARNING_METRICS,
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Each of `metrics` that `curves` has, over iterations: the mean over seeds, seeds faint.

    `curves`: `method, seed, iteration, metric, value`, and optionally `round`: numbers of
    objectives take turns from iteration to iteration, and so many iterations give each its turn.
    Then a point is the mean of a round, or the curve would show whose turn it was. The data
    returned is what is drawn, in the same columns, with `seed` missing in the rows of the mean.
    Raises ValueError when none of the metrics is there.
    """
    require_columns(curves, ("method", "seed", "iteration", "metric", "value"), name="curves")
    rows = curves.astype({"value": float, "seed": "Int64"})
    rows = _by_round(rows[rows["metric"].isin(metrics) & np.isfinite(rows["value"])])
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    if not present:
        raise ValueError(f"curves has none of the metrics {list(metrics)}")
    means = rows.groupby(["method", "iteration", "metric"])["value"].mean().reset_index()
    styles = styles or palette(rows["method"])
    every = int(rows["round"].max()) if "round" in rows else 1
    tail = ceil(_TAIL / every)
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
            last[method] = float(mean["value"].tail(tail).mean())
        counted = min(tail, means[means["metric"] == metric]["iteration"].nunique()) * every
        leader = finding(last, f"over the last {counted} iterations") if metric in _JUDGED else ""
        dress(axes, title=quantity, subtitle=leader, ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if unit == "share":
            axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("optimiser step" if set(present) <= set(_COLD_START) else "iteration")
    legend(figure, panels)
    return figure, pd.concat([rows, means], ignore_index=True)


def _by_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over rounds of iterations, at the last iteration of each.

    An incomplete last round is left out, but not that of a run that has no other.
    """
    if "round" not in rows:
        return rows
    number = (rows["iteration"] - 1) // rows["round"] + 1
    end = number * rows["round"]
    last = rows.groupby([*run_keys(rows), "method"])["iteration"].transform("max")
    short = last < rows["round"]
    rows = rows.assign(iteration=end.where(~short, rows["iteration"]))[short | (end <= last)]
    keys = [column for column in rows.columns if column != "value"]
    return rows.groupby(keys, dropna=False)["value"].mean().reset_index()
