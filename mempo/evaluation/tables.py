"""The tables of the page: numbers, intervals and paired differences, their cells written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mempo.evaluation.pairing import pair_runs
from mempo.evaluation.stats import (
    PairedDifference,
    mean_interval,
    ordered,
    paired_difference,
    summary_table,
)

BASELINE = "GRPO"
NOTHING = "\u2013"
MODES = {"greedy": "Greedy decoding", "sampled": "Sampled at temperature 1"}
T_PAIRS = 3  # Student's t interval is shown, and can mark a difference, from this many runs on
# metric -> (its name on the page, how a value is written, how a difference is)
METRICS = {
    "f1": ("F1", "{:.3f}", "{:+z.3f}"),
    "em": ("EM", "{:.3f}", "{:+z.3f}"),
    "format": ("format", "{:.3f}", "{:+z.3f}"),
    "well_formed": ("well-formed steps", "{:.3f}", "{:+z.3f}"),
    "p_answer": ("P(answer | memory)", "{:.3f}", "{:+z.3f}"),
    "tt": ("TT", "{:,.0f}", "{:+z,.0f}"),
    "pt": ("PT", "{:,.0f}", "{:+z,.0f}"),
    "steps": ("steps", "{:.2f}", "{:+z.2f}"),
    "mem_tokens": ("memory tokens", "{:.1f}", "{:+z.1f}"),
    "usd": ("USD / 1,000 tasks", "{:.3f}", "{:+z.3f}"),
    "f1_sum": ("F1 sum", "{:.2f}", "{:+z.2f}"),
    "em_sum": ("EM sum", "{:.2f}", "{:+z.2f}"),
    "queries": ("queries", "{:.2f}", "{:+z.2f}"),
    "asked_needed": ("asked, needed", "{:.3f}", "{:+z.3f}"),
    "asked_needless": ("asked, needless", "{:.3f}", "{:+z.3f}"),
}
_SCALE = {"usd": 1000.0}  # a task costs too little to be read
_NO_PAIR = PairedDifference({}, float("nan"), float("nan"), float("nan"), 0)
_PAPER = ("f1", "em", "tt", "pt")
_COMPARED = ("f1", "em", "p_answer", "tt", "pt", "steps")


def paper_table(evaluations: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """F1, EM, TT and PT of each method at each number of objectives, against the baseline.

    A row per `mode, method, objectives, metric`: `mean, low, high` with the bootstrap interval
    over seeds and questions; `difference, difference_low, difference_high` of the same tasks to
    the baseline, seeds being the outer level, over `pairs` tasks of `runs` pairs of runs;
    `t_low, t_high`, Student's t interval of that difference over the runs alone. NaN where there
    is nothing to compare with.
    """
    rows: list[dict[str, Any]] = []
    for mode in ordered_modes(evaluations["mode"]):
        of_mode = evaluations[evaluations["mode"] == mode]
        for method in ordered(of_mode["method"]):
            mine = of_mode[of_mode["method"] == method]
            for k in sorted(set(mine["objectives"])):
                group = mine[mine["objectives"] == k]
                tasks = of_mode[of_mode["objectives"] == k]
                for metric in _PAPER:
                    found = mean_interval(group, metric, key=(metric, str(method), str(k)))
                    row = {"mode": mode, "method": method, "objectives": k, "metric": metric}
                    row |= {"mean": found.mean, "low": found.low, "high": found.high}
                    one = against_baseline(tasks, method, metric, mode, k, baseline)
                    one = one or _NO_PAIR
                    row |= {
                        "difference": one.mean,
                        "difference_low": one.low,
                        "difference_high": one.high,
                        "pairs": one.pairs,
                        "runs": len(one.per_seed),
                        "t_low": one.t_low,
                        "t_high": one.t_high,
                    }
                    rows.append(row)
    return pd.DataFrame(rows)


def paper_cells(table: pd.DataFrame) -> list[dict[str, Any]]:
    """`paper_table` as the page shows it: a wide table per mode, a row per method."""
    tables: list[dict[str, Any]] = []
    for mode, of_mode in table.groupby("mode", sort=False):
        objectives = sorted(set(of_mode["objectives"]))
        rows: list[dict[str, Any]] = []
        for method in ordered(of_mode["method"]):
            mine = of_mode[of_mode["method"] == method]
            found = {(r["objectives"], r["metric"]): r for r in mine.to_dict("records")}
            cells = [_paper_cell(found.get((k, m)), m) for k in objectives for m in _PAPER]
            rows.append({"method": method, "cells": cells})
        tables.append(
            {
                "name": MODES.get(str(mode), mode),
                "objectives": objectives,
                "metrics": [METRICS[metric][0] for metric in _PAPER],
                "rows": rows,
            }
        )
    return tables


def _paper_cell(row: Mapping[Any, Any] | None, metric: str) -> dict[str, Any]:
    if row is None:
        return {"mean": NOTHING, "interval": "", "difference": "", "around": "", "t": ""}
    _, form, signed = METRICS[metric]
    low, high, t_low, t_high = (
        row[name] for name in ("difference_low", "difference_high", "t_low", "t_high")
    )
    return {
        "mean": number(row["mean"], form),
        "interval": brackets(row["low"], row["high"], form),
        "difference": "" if pd.isna(row["difference"]) else signed.format(row["difference"]),
        "around": brackets(low, high, signed),
        "t": brackets(t_low, t_high, signed) if row["runs"] >= T_PAIRS else "",
        "leaves_out_zero": leaves_out_zero(low, high, t_low, t_high, row["runs"]),
    }


def headline_tables(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """Every measured quantity of each mode, greedy first, its cells already written out."""
    tables: list[dict[str, Any]] = []
    shown = [metric for metric in METRICS if metric in summary and summary[metric].notna().any()]
    for mode in ordered_modes(summary["mode"]):
        rows = [
            {
                "method": row["method"],
                "objectives": row["objectives"],
                "cells": [_with_std(row, metric) for metric in shown],
                "n": row["n"],
            }
            for row in summary[summary["mode"] == mode].to_dict("records")
        ]
        names = [METRICS[metric][0] for metric in shown]
        tables.append({"name": MODES.get(mode, mode), "metrics": names, "rows": rows})
    return tables


def _with_std(row: Mapping[Any, Any], metric: str) -> tuple[str, str]:
    """A mean, and its standard deviation over seeds where there are several."""
    form, scale = METRICS[metric][1], _SCALE.get(metric, 1.0)
    std = row[f"{metric}_std"]
    return number(row[metric] * scale, form), "" if pd.isna(std) else form.format(std * scale)


def difference_rows(evaluations: pd.DataFrame, baseline: str = BASELINE) -> list[dict[str, Any]]:
    """Differences to the baseline over all objectives, per mode, method and metric."""
    found: list[dict[str, Any]] = []
    if evaluations.empty:
        return found
    for mode in ordered_modes(evaluations["mode"]):
        for method in ordered(evaluations["method"]):
            for metric in _COMPARED:
                name, _, form = METRICS[metric]
                one = against_baseline(evaluations, method, metric, mode, None, baseline)
                if one is None:
                    continue
                found.append(
                    {
                        "mode": mode,
                        "method": method,
                        "metric": name,
                        "difference": interval(one.mean, one.low, one.high, form),
                        "leaves_out_zero": leaves_out_zero(
                            one.low, one.high, one.t_low, one.t_high, len(one.per_seed)
                        ),
                        "t": t_interval(one, form),
                        "per_seed": [
                            f"{run_name(run)}: {form.format(value)}"
                            for run, value in sorted(one.per_seed.items())
                        ],
                        "pairs": one.pairs,
                    }
                )
    return found


def against_baseline(
    evaluations: pd.DataFrame,
    method: str,
    metric: str,
    mode: str,
    objectives: int | None,
    baseline: str = BASELINE,
) -> PairedDifference | None:
    """`method` minus the baseline on the tasks both were given; None where there are none.

    Pairs are those of `pair_runs`: weights that no run trained stand beside every run of the
    other method.
    """
    if method == baseline:
        return None
    rows = evaluations[evaluations["mode"] == mode]
    if objectives is not None:
        rows = rows[rows["objectives"] == objectives]
    ours, theirs = pair_runs(rows, method, baseline), pair_runs(rows, baseline, method)
    found = paired_difference(ours, theirs, metric=metric, key=(str(method), mode, str(objectives)))
    return found if found.pairs else None


def leaves_out_zero(low: float, high: float, t_low: float, t_high: float, runs: int) -> bool:
    """Whether a difference's two intervals leave out 0; never below `T_PAIRS` pairs of runs.

    A bootstrap over so few runs is too narrow to judge by alone, and over one run it speaks of
    the questions only.
    """
    return bool(runs >= T_PAIRS and low * high > 0 and t_low * t_high > 0)


def run_name(run: int | tuple[str, int]) -> str:
    """How the page calls a training run: by its seed, and its cold start where that matters."""
    return f"seed {run}" if isinstance(run, int) else f"{run[0]} seed {run[1]}"


def interval(mean: float, low: float, high: float, form: str) -> str:
    """'+0.100 [+0.050, +0.150]', without brackets where the interval is unknown."""
    return f"{form.format(mean)} {brackets(low, high, form)}".rstrip()


def brackets(low: float, high: float, form: str) -> str:
    """'[+0.050, +0.150]', empty where the interval is unknown."""
    return "" if pd.isna(low) else f"[{form}, {form}]".format(low, high)


def t_interval(found: PairedDifference, form: str) -> str:
    """'[+0.050, +0.150]' by Student's t; empty below `T_PAIRS` pairs of runs."""
    enough = len(found.per_seed) >= T_PAIRS
    return brackets(found.t_low, found.t_high, form) if enough else ""


def number(value: float, form: str) -> str:
    return NOTHING if pd.isna(value) else form.format(value)


def ordered_modes(modes: pd.Series) -> list[str]:
    """Greedy before sampled before anything else."""
    names = set(modes)
    return [mode for mode in MODES if mode in names] + sorted(names - set(MODES))


def terminal_table(evaluations: pd.DataFrame) -> str:
    """The headline numbers as plain text, a line per method, objectives and mode."""
    if evaluations.empty:
        return "nothing was evaluated"
    head = ["method", "K", "mode", "F1", "EM", "P(a|mem)", "TT", "PT", "steps", "n"]
    lines = [head]
    for row in summary_table(evaluations).to_dict("records"):
        lines.append(
            [
                str(row["method"]),
                str(row["objectives"]),
                str(row["mode"]),
                *(
                    number(row[metric], METRICS[metric][1])
                    for metric in ("f1", "em", "p_answer", "tt", "pt", "steps")
                ),
                str(row["n"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    text_columns = (0, 2)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
