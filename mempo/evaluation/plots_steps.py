"""Figures over the steps of a task: how long its context grows, and what its memory is worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mempo.evaluation.canvas import Style, canvas, dress, finding, legend, palette
from mempo.evaluation.plots import of_mode
from mempo.evaluation.stats import mean_interval, ordered

_CONTEXT = {  # column of the task table -> (quantity, unit)
    "step_context_tokens": ("Context of a step", "tokens, prompt + output"),
    "step_mem_tokens": ("Length of its memory", "tokens"),
}
_WORTH = {"step_p_answer": ("P(answer | memory) by step", "probability")}
_RESAMPLES = 500  # there are many steps, and nobody reads a band to a per mille


def context_by_step(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Tokens that each step holds, and those of its memory, for every agent.

    The mean is over the tasks that got as far as that step; bands are 95 % intervals over seeds
    and questions. Drawn for the largest number of objectives, the data has all: `method,
    objectives, metric, step, n, value, low, high`, steps from 1, n tasks. Raises ValueError where
    no row has the lists.
    """
    return _by_step(evaluations, _CONTEXT, mode=mode, styles=styles)


def p_answer_by_step(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """P(answer | memory) after each step; data and errors as in `context_by_step`."""
    return _by_step(evaluations, _WORTH, mode=mode, styles=styles)


def has_steps(evaluations: pd.DataFrame, column: str) -> bool:
    """Whether any row has a known value in the list of `column`."""
    return column in evaluations.columns and any(
        isinstance(values, list) and any(value is not None for value in values)
        for values in evaluations[column]
    )


def _by_step(
    evaluations: pd.DataFrame,
    quantities: Mapping[str, tuple[str, str]],
    *,
    mode: str,
    styles: Mapping[str, Style] | None,
) -> tuple[Figure, pd.DataFrame]:
    rows = of_mode(evaluations, mode)
    present = [column for column in quantities if has_steps(rows, column)]
    if not present:
        raise ValueError(f"no evaluated task has the lists {list(quantities)}")
    data = pd.concat([_steps(rows, column) for column in present], ignore_index=True)
    largest = data["objectives"].max()
    styles = styles or palette(evaluations["method"])
    figure, panels = canvas(len(present))
    for axes, column in zip(panels, present, strict=True):
        quantity, unit = quantities[column]
        last: dict[str, float] = {}
        shown = data[(data["metric"] == column) & (data["objectives"] == largest)]
        for method in ordered(shown["method"]):
            one, look = shown[shown["method"] == method], styles[method]
            axes.plot(
                one["step"],
                one["value"],
                color=look.colour,
                marker=look.marker,
                linestyle=look.line,
                markersize=5,
                lw=2,
                label=method,
            )
            axes.fill_between(
                one["step"], one["low"], one["high"], color=look.colour, alpha=0.2, lw=0
            )
            last[method] = float(one["value"].iloc[-1])
        worth = finding(last, "in the last step") if column in _WORTH else ""
        dress(axes, title=f"{quantity}, K = {largest}", subtitle=worth, ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("step")
    legend(figure, panels)
    return figure, data


def _steps(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean and interval of a list column per method, K and step."""
    lists = [values if isinstance(values, list) else [] for values in rows[column]]
    kept = rows.assign(step=pd.Series([list(range(1, len(v) + 1)) for v in lists], rows.index))
    kept = kept[[len(values) > 0 for values in lists]]
    flat = kept.explode([column, "step"], ignore_index=True)
    flat = flat.astype({column: float, "step": int})
    flat = flat[np.isfinite(flat[column])]
    found: list[dict[str, object]] = []
    for (method, objectives, step), group in flat.groupby(["method", "objectives", "step"]):
        key = (column, str(method), str(objectives), str(step))
        whole = mean_interval(group, column, resamples=_RESAMPLES, key=key)
        here = {"method": method, "objectives": objectives, "metric": column, "step": step}
        mean = {"n": len(group), "value": whole.mean, "low": whole.low, "high": whole.high}
        found.append(here | mean)
    return pd.DataFrame(found)
