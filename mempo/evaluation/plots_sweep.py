"""Figures of a sweep: its course, what each setting matters, and where the good trials lie.

A trial without a value (pruned, failed, cut off) is shown as such, never at a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mempo.config.space import Dimension, written
from mempo.evaluation.canvas import PANEL_HEIGHT, canvas, dress
from mempo.evaluation.sweeps import SweepTable

_WINNER, _OTHER, _LOST = "#D55E00", "#0072B2", "#888888"
_MARKERS = {"pruned": "v", "failed": "x", "running": "$?$", "cut off": "$?$"}
_TICKS = 6  # values that an axis names one by one
_BELOW = {"pruned": -0.06, "failed": -0.12}  # the axis of values: what has none


def trials_history(sweep: SweepTable) -> tuple[Figure, pd.DataFrame]:
    """The value of each trial in their order, and the best so far.

    The data: `trial, state, value, best`, `best` missing before the first value.
    """
    data = sweep.trials[["trial", "state", "value"]].sort_values("trial", ignore_index=True)
    data["best"] = data["value"].cummax().ffill()
    figure, (axes,) = canvas(1, height=PANEL_HEIGHT + 0.3)
    axes.step(data["trial"], data["best"], where="post", color=_WINNER, lw=1.5, label="best so far")
    known = data[data["value"].notna()]
    axes.plot(known["trial"], known["value"], "o", color=_OTHER, markersize=5, label="trial")
    won = known[known["trial"] == sweep.winner]
    axes.plot(won["trial"], won["value"], "o", color=_WINNER, markersize=8, zorder=4)
    for state, lost in data[data["value"].isna()].groupby("state", sort=False):
        axes.plot(
            lost["trial"],
            np.full(len(lost), 0.03),
            linestyle="",
            marker=_MARKERS[str(state)],
            color=_LOST,
            markersize=6,
            transform=axes.get_xaxis_transform(),
            label=f"{state}: no value",
        )
    best = "" if sweep.winner is None else f"trial {sweep.winner}: {known['value'].max():.3g}"
    dress(axes, title="Trials", subtitle=best, ylabel=sweep.metric)
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.margins(y=0.15)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return figure, data


def importance_bars(sweep: SweepTable) -> tuple[Figure, pd.DataFrame]:
    """The share of what parts the best trials from all that each setting explains.

    The data: `setting, importance`, largest first. Raises ValueError where it is unknown.
    """
    if not sweep.importance:
        raise ValueError(f"the importance of the settings of {sweep.name} is unknown")
    data = pd.DataFrame(sweep.importance.items(), columns=["setting", "importance"])
    data = data.sort_values("importance", ascending=False, ignore_index=True)
    figure, (axes,) = canvas(1, height=0.9 + 0.35 * len(data))
    axes.barh(data["setting"], data["importance"], color=_OTHER, height=0.6)
    axes.invert_yaxis()
    for i, share in enumerate(data["importance"]):
        axes.annotate(f"{share:.0%}", (share, i), (4, 0), textcoords="offset points",
                      fontsize=9, va="center")  # fmt: skip
    dress(axes, title="What matters", ylabel="")
    axes.set_xlim(0, 1.12)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of importance")
    axes.grid(visible=False)
    return figure, data


def parallel_coordinates(sweep: SweepTable) -> tuple[Figure, pd.DataFrame]:
    """Each trial as a line through its settings to its value; the winner is drawn thick.

    Lines of complete trials are tinted by their value, those of the others are grey, dashed, and
    end below the axis of values. The data: `trial, state, value` and a column per setting, in
    positions from 0 to 1 along the axes.
    """
    trials = sweep.trials.sort_values("trial", ignore_index=True)
    places = {d.setting: [_place(d, value) for value in trials[d.setting]] for d in sweep.space}
    values = trials["value"].to_numpy(dtype=float)
    low, high = _bounds(values)
    heights = (values - low) / (high - low)
    data = trials[["trial", "state", "value"]].assign(**places)
    figure, (axes,) = canvas(1, height=3.6)
    tint = colormaps["viridis"]
    for i in np.argsort(np.nan_to_num(values, nan=-np.inf)):  # the best on top
        line = [places[d.setting][i] for d in sweep.space]
        below = _BELOW.get(str(trials["state"][i]), -0.18)
        lost, best = bool(np.isnan(values[i])), trials["trial"][i] == sweep.winner
        axes.plot(
            range(len(line) + 1),
            [*line, below if lost else heights[i]],
            color=_LOST if lost else _WINNER if best else tint(0.25 + 0.6 * heights[i]),
            linestyle=":" if lost else "-",
            lw=2.8 if best else 1.1,
            alpha=0.8 if best or not lost else 0.7,
            zorder=3 if best else 2,
        )
        if lost:
            marker = _MARKERS[str(trials["state"][i])]
            axes.plot(len(line), below, marker=marker, color=_LOST, markersize=6, zorder=3)
    labels = [_ticks(dimension) for dimension in sweep.space]
    labels.append([(0.0, f"{low:.3g}"), (0.5, f"{(low + high) / 2:.3g}"), (1.0, f"{high:.3g}")])
    _draw_axes(axes, labels, [*(d.setting for d in sweep.space), sweep.metric])
    _explain(figure, sweep, set(trials.loc[np.isnan(values), "state"]))
    return figure, data


def _draw_axes(axes: Axes, labels: Sequence[list[tuple[float, str]]], names: list[str]) -> None:
    """Upright axes with their ticks, and the name of each below it."""
    last = len(labels) - 1
    for x, ticks in enumerate(labels):
        axes.plot([x, x], [0, 1], color=_LOST, lw=1, zorder=1)
        for height, text in ticks:
            axes.plot([x - 0.02, x], [height, height], color=_LOST, lw=1, zorder=1)
            side, away = ("left", 5) if x == last else ("right", -5)
            # A little above the lines that meet there.
            axes.annotate(text, (x, height), (away, 6), textcoords="offset points", fontsize=8,
                          ha=side, va="center", zorder=5)  # fmt: skip
    wrapped = [name.replace(".", ".\n", 1).replace("/", "/\n", 1) for name in names]
    axes.set_xticks(range(len(names)), wrapped)
    dress(axes, title="Settings and value of each trial", ylabel="")
    axes.set_xlim(-0.25, last + 0.3)
    axes.set_ylim(-0.22, 1.07)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _explain(figure: Figure, sweep: SweepTable, lost: set[str]) -> None:
    entries = []
    if sweep.winner is not None:
        entries.append(Line2D([], [], color=_WINNER, lw=2.8, label=f"best: trial {sweep.winner}"))
        shade = colormaps["viridis"](0.85)
        entries.append(Line2D([], [], color=shade, lw=1.1, label="lighter: better"))
    for state in sorted(lost):
        entries.append(
            Line2D([], [], color=_LOST, linestyle=":", marker=_MARKERS[state],
                   label=f"{state}: no value")
        )  # fmt: skip
    figure.legend(handles=entries, loc="outside upper left", ncols=3, frameon=False, fontsize=9)


def _place(dimension: Dimension, value: object) -> float:
    """Where a value stands on its axis, from 0 to 1: choices evenly, ranges by their scale."""
    if dimension.choices:
        return dimension.choices.index(value) / (len(dimension.choices) - 1)
    low, high, at = (
        np.log(number) if dimension.log else number
        for number in (dimension.low, dimension.high, float(str(value)))
    )
    return float((at - low) / (high - low))


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    if dimension.choices or (dimension.countable and len(dimension.values) <= _TICKS):
        return [(_place(dimension, value), written(value)) for value in dimension.values]
    middle = (
        np.sqrt(dimension.low * dimension.high)
        if dimension.log
        else (dimension.low + dimension.high) / 2
    )
    shown = (dimension.low, middle, dimension.high)
    if dimension.whole:
        shown = tuple(sorted({dimension.low, round(middle), dimension.high}))
    return [(_place(dimension, number), f"{number:.3g}") for number in shown]


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest value, apart even where all are equal or none is there."""
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, high) if high > low else (low - 0.5, low + 0.5)
