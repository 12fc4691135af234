"""Figures of what a finished policy makes of its tokens: F1 for their sum, and by history kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mempo.evaluation.canvas import Style, canvas, dress, legend, palette
from mempo.evaluation.plots import of_mode, points
from mempo.evaluation.stats import ordered

_HISTORY = {  # metric -> (quantity, unit)
    "f1": ("Word F1 by history kept", "F1 (0 to 1)"),
    "p_answer": ("P(answer | memory) by history kept", "probability"),
}
_LINES = ("-", "--", ":", "-.")
_MARKERS = "oDs^vPXh"


def score_by_tokens(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Word F1 against the total tokens of a task, a point per method and number of objectives.

    The data: `method, objectives, tt, tt_low, tt_high, f1, f1_low, f1_high`, intervals of 95 %
    over seeds and questions. A point further up and left is better; its number is K.
    """
    rows = of_mode(evaluations, mode)
    sides: list[pd.DataFrame] = []
    for metric in ("tt", "f1"):
        means = points(rows, metric, ("method", "objectives"))
        means = means.loc[means["seed"].isna(), ["method", "objectives", "value", "low", "high"]]
        names = {"value": metric, "low": f"{metric}_low", "high": f"{metric}_high"}
        sides.append(means.rename(columns=names).set_index(["method", "objectives"]))
    data = pd.concat(sides, axis=1).reset_index()
    styles = styles or palette(evaluations["method"])
    figure, [axes] = canvas(1, height=3.2)
    numbered: list[tuple[float, float]] = []
    near_x, near_y = 0.05 * data["tt"].max(), 0.06 * max(data["f1"].max(), 1e-9)
    for method in ordered(data["method"]):
        one, look = data[data["method"] == method].sort_values("objectives"), styles[method]
        bars = np.nan_to_num([one["f1"] - one["f1_low"], one["f1_high"] - one["f1"]])
        axes.errorbar(
            one["tt"],
            one["f1"],
            yerr=np.maximum(bars, 0.0),
            color=look.colour,
            marker=look.marker,
            linestyle=look.line,
            markersize=6,
            lw=1.5,
            elinewidth=1,
            capsize=2,
            label=method,
        )
        for k, x, y in zip(one["objectives"], one["tt"], one["f1"], strict=True):
            # Where points lie together one number says it for all.
            if all(abs(x - u) > near_x or abs(y - v) > near_y for u, v in numbered):
                axes.annotate(str(k), (x, y), (5, 5), textcoords="offset points", fontsize=8)
                numbered.append((x, y))
    dress(axes, title="Word F1 for the tokens it took", ylabel="F1 (0 to 1)")
    axes.set_xlabel("total tokens per task (numbers: K)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    legend(figure, [axes])
    return figure, data


def score_by_history(
    evaluations: pd.DataFrame,
    *,
    mode: str = "greedy",
    styles: Mapping[str, Style] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """F1 and P(answer | memory) of one policy by the earlier steps that it sees at inference.

    Needs the columns `history` (`agent.history` of a self-memory agent, else empty) and `policy`
    (the evaluated weights, empty where they are not known), see `histories`. A line per
    policy and K. The data: `policy, objectives, history, metric, seed, value, low, high`, `seed`
    missing for the mean. Raises ValueError where no policy was evaluated with several histories.
    """
    rows = histories(of_mode(evaluations, mode))
    if rows.empty:
        raise ValueError("no policy was evaluated with more than one agent.history")
    present = [metric for metric in _HISTORY if rows[metric].notna().any()]
    by = ("policy", "objectives", "history")
    data = pd.concat([points(rows, metric, by) for metric in present], ignore_index=True)
    order = sorted(set(rows["history"]), key=_context)
    data = data.sort_values(
        "history", key=lambda column: column.map(order.index), kind="stable", ignore_index=True
    )
    first = rows.sort_values("history", key=lambda column: column.map(order.index), kind="stable")
    method_of = first.groupby("policy")["method"].first()
    looks = styles or palette(evaluations["method"])
    policies, objectives = sorted(set(rows["policy"])), sorted(set(rows["objectives"]))
    figure, panels = canvas(len(present))
    for axes, metric in zip(panels, present, strict=True):
        for policy in policies:
            for i, k in enumerate(objectives):
                one = data[(data["metric"] == metric) & (data["seed"].isna())]
                one = one[(one["policy"] == policy) & (one["objectives"] == k)]
                x = [order.index(history) for history in one["history"]]
                bars = np.nan_to_num([one["value"] - one["low"], one["high"] - one["value"]])
                axes.errorbar(
                    x,
                    one["value"],
                    yerr=np.maximum(bars, 0.0),
                    color=looks[method_of[policy]].colour,
                    linestyle=_LINES[i % len(_LINES)],
                    marker=_MARKERS[i % len(_MARKERS)],
                    markersize=6,
                    lw=2,
                    elinewidth=1,
                    capsize=2,
                    label=f"{policy}, K = {k}" if len(policies) > 1 else f"K = {k}",
                )
        quantity, unit = _HISTORY[metric]
        dress(axes, title=quantity, ylabel=unit)
        axes.set_xticks(range(len(order)), order)
        axes.set_xlim(-0.3, len(order) - 0.7)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("earlier steps that a step sees (agent.history)")
    legend(figure, panels)
    return figure, data


def histories(evaluations: pd.DataFrame) -> pd.DataFrame:
    """The rows of policies that were evaluated with several histories, `policy` being their name.

    Methods that evaluate the same weights (of any seed) are one policy; it is called by the words
    with which all their names begin, 'policy 1' and so on where there are none. Empty where the
    columns are missing.
    """
    if not {"history", "policy"} <= set(evaluations.columns):
        return evaluations.iloc[:0]
    weighed = evaluations[(evaluations["history"] != "") & (evaluations["policy"] != "")]
    families: list[tuple[set[str], list[str]]] = []
    for method in ordered(weighed["method"]):
        weights = set(weighed.loc[weighed["method"] == method, "policy"])
        for known, methods in families:
            if known & weights:
                known |= weights
                methods.append(method)
                break
        else:
            families.append((weights, [method]))
    parts: list[pd.DataFrame] = [weighed.iloc[:0]]
    for i, (_, methods) in enumerate(families, start=1):
        rows = weighed[weighed["method"].isin(methods)]
        if rows["history"].nunique() > 1:
            parts.append(rows.assign(policy=_common_words(methods) or f"policy {i}"))
    return pd.concat(parts, ignore_index=True)


def _common_words(names: list[str]) -> str:
    shared: list[str] = []
    for words in zip(*(name.split() for name in names), strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return " ".join(shared).rstrip(",;:-")


def _context(history: str) -> float:
    """Order by how much a step sees: the memory alone, k earlier steps, all of them."""
    if history == "memory":
        return 0.0
    return float(history) if history.isdigit() else float("inf")
