"""One self-contained HTML page, and one plain table, of what runs have shown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from mempo.evaluation.canvas import DARK, palette, png, save
from mempo.evaluation.plots import (
    HEALTH_METRICS,
    LEARNING_METRICS,
    learning_curves,
    probability_buckets,
    score_by_objectives,
    steps_buckets,
    tokens_by_objectives,
)
from mempo.evaluation.stats import (
    PairedDifference,
    checked,
    ordered,
    paired_difference,
    require_columns,
    summary_table,
)
from mempo.evaluation.viewer import templates, trajectories_html

BASELINE = "GRPO"
START = "SFT"
NOTHING = "\u2013"
_MODES = {"greedy": "Greedy decoding", "sampled": "Sampled at temperature 1"}
_DIFFERENCES = {  # metric -> its name on the page, and how a value of it is written
    "f1": ("F1", "{:+.3f}"),
    "em": ("EM", "{:+.3f}"),
    "p_answer": ("P(answer | memory)", "{:+.3f}"),
    "tt": ("Total tokens", "{:+,.0f}"),
    "pt": ("Peak tokens", "{:+,.0f}"),
    "steps": ("Steps", "{:+.2f}"),
}


def write_report(
    folder: str | Path,
    *,
    title: str,
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    trajectories: Sequence[Mapping[str, Any]],
    notes: list[str],
    facts: dict[str, str],
) -> Path:
    """Write `folder/report.html`, `folder/summary.csv` and `folder/figures/`; returns the page.

    The page needs no other file: pictures are inlined, in light and dark. `figures/` holds each
    picture as PNG with the numbers behind it as CSV. A table without rows (and so without
    columns) and an empty list are fine: the page leaves out what they would have filled.
    Raises ValueError on missing columns.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = evaluations if evaluations.empty else checked(evaluations)
    summary = summary_table(rows)
    if not summary.empty:
        summary.to_csv(folder / "summary.csv", index=False)
    page = (
        templates()
        .get_template("report.html.j2")
        .render(
            title=title,
            tables=_tables(rows, summary),
            differences=_differences(rows),
            baseline=BASELINE,
            figures=_figures(folder / "figures", rows, curves),
            trajectories=Markup(trajectories_html(trajectories)) if trajectories else "",
            notes=notes,
            facts=facts,
            nothing=NOTHING,
        )
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


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
                *(_number(row[metric], "{:.3f}") for metric in ("f1", "em", "p_answer")),
                *(_number(row[metric], "{:,.0f}") for metric in ("tt", "pt")),
                _number(row["steps"], "{:.2f}"),
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


def difference_lines(evaluations: pd.DataFrame) -> list[str]:
    """What each trained method gains over GRPO on the same tasks, a line per objectives.

    Sampled evaluations where there are any, else greedy ones; mean over seeds with its 95 %
    interval, and every seed's own difference where there are several. Only methods that were run
    with all of GRPO's seeds, and not the start itself; empty where GRPO was not evaluated.
    """
    lines: list[str] = []
    if evaluations.empty:
        return lines
    mode = _ordered_modes(evaluations["mode"])[-1]
    seeds_of = {str(m): set(rows["seed"]) for m, rows in evaluations.groupby("method")}
    paired = [m for m in seeds_of if seeds_of[m] >= seeds_of.get(BASELINE, set()) and m != START]
    for method in ordered(paired):
        for k in sorted(set(evaluations["objectives"])):
            parts = []
            for metric in ("em", "f1", "p_answer", "tt"):
                name, form = _DIFFERENCES[metric]
                one = _against_baseline(evaluations, method, metric, mode, k)
                if one is not None:
                    seeds = " ".join(form.format(v) for _, v in sorted(one.per_seed.items()))
                    several = f" (by seed: {seeds})" if len(one.per_seed) > 1 else ""
                    parts.append(f"{name} {_interval(one, form)}{several}")
            if parts:
                lines.append(f"{method} - {BASELINE}, K = {k}, {mode}: {'; '.join(parts)}")
    return lines


def _number(value: float, form: str) -> str:
    return NOTHING if pd.isna(value) else form.format(value)


def _tables(evaluations: pd.DataFrame, summary: pd.DataFrame) -> list[dict[str, Any]]:
    """The headline table of each mode, greedy first, its cells already written out."""
    tables: list[dict[str, Any]] = []
    for mode in _ordered_modes(summary["mode"]):
        rows: list[dict[str, Any]] = []
        for row in summary[summary["mode"] == mode].to_dict("records"):
            found = _against_baseline(evaluations, row["method"], "f1", mode, row["objectives"])
            rows.append(
                {
                    "method": row["method"],
                    "objectives": row["objectives"],
                    "cells": [
                        *(_with_std(row, metric, "{:.3f}") for metric in ("f1", "em", "p_answer")),
                        *(_with_std(row, metric, "{:,.0f}") for metric in ("tt", "pt")),
                    ],
                    "difference": _interval(found, "{:+.3f}"),
                    "leaves_out_zero": found is not None and found.low * found.high > 0,
                    "n": row["n"],
                    "seeds": row["seeds"],
                }
            )
        compared = any(row["difference"] for row in rows)
        tables.append({"name": _MODES.get(mode, mode), "rows": rows, "compared": compared})
    return tables


def _with_std(row: Mapping[Any, Any], metric: str, form: str) -> tuple[str, str]:
    """A mean, and its standard deviation over seeds where there are several."""
    std = row[f"{metric}_std"]
    return _number(row[metric], form), "" if pd.isna(std) else form.format(std)


def _differences(evaluations: pd.DataFrame) -> list[dict[str, Any]]:
    """Differences to the baseline over all objectives, per mode, method and metric."""
    found: list[dict[str, Any]] = []
    if evaluations.empty:
        return found
    for mode in _ordered_modes(evaluations["mode"]):
        for method in ordered(evaluations["method"]):
            for metric, (name, form) in _DIFFERENCES.items():
                one = _against_baseline(evaluations, method, metric, mode, None)
                if one is None:
                    continue
                found.append(
                    {
                        "mode": mode,
                        "method": method,
                        "metric": name,
                        "difference": _interval(one, form),
                        "leaves_out_zero": one.low * one.high > 0,
                        "per_seed": [
                            f"seed {seed}: {form.format(value)}"
                            for seed, value in sorted(one.per_seed.items())
                        ],
                        "pairs": one.pairs,
                    }
                )
    return found


def _against_baseline(
    evaluations: pd.DataFrame, method: str, metric: str, mode: str, objectives: int | None
) -> PairedDifference | None:
    """`method` minus the baseline on the tasks both were given; None where there are none."""
    if method == BASELINE:
        return None
    rows = evaluations[evaluations["mode"] == mode]
    if objectives is not None:
        rows = rows[rows["objectives"] == objectives]
    ours, theirs = rows[rows["method"] == method], rows[rows["method"] == BASELINE]
    found = paired_difference(ours, theirs, metric=metric, key=(str(method), mode, str(objectives)))
    return found if found.pairs else None


def _interval(found: PairedDifference | None, form: str) -> str:
    if found is None:
        return ""
    if pd.isna(found.low):
        return form.format(found.mean)
    return f"{form} [{form}, {form}]".format(found.mean, found.low, found.high)


def _ordered_modes(modes: pd.Series) -> list[str]:
    """Greedy before sampled before anything else."""
    names = set(modes)
    return [mode for mode in _MODES if mode in names] + sorted(names - set(_MODES))


def _figures(folder: Path, evaluations: pd.DataFrame, curves: pd.DataFrame) -> list[dict[str, str]]:
    """Draw, save and inline every picture that the tables have numbers for."""
    methods = [*evaluations.get("method", []), *curves.get("method", [])]
    styles = palette(methods)
    drawn: list[tuple[str, str, Callable[[], tuple[Figure, pd.DataFrame]]]] = []
    if not evaluations.empty:
        mode = _ordered_modes(evaluations["mode"])[0]
        how = f"{_MODES.get(mode, mode)}."
        bars = "Bars: 95 % bootstrap intervals over seeds and questions; dots: seeds."
        known = evaluations.loc[evaluations["mode"] == mode, "p_answer"].notna().any()
        for name, caption, draw in (
            (
                "score_by_objectives",
                f"Quality by number of objectives. {how} {bars}",
                score_by_objectives,
            ),
            (
                "tokens_by_objectives",
                f"Cost by number of objectives. {how} {bars}",
                tokens_by_objectives,
            ),
            (
                "probability_buckets",
                f"P(answer | last memory), all K together. {how}",
                probability_buckets,
            ),
            ("steps_buckets", f"Steps, all K together. {how}", steps_buckets),
        ):
            if known or draw is not probability_buckets:
                drawn.append((name, caption, partial(draw, evaluations, mode=mode, styles=styles)))
    if not curves.empty:
        require_columns(curves, ("method", "metric", "value"), name="curves")
        measured = set(curves.loc[np.isfinite(curves["value"].astype(float)), "metric"])
        for name, caption, metrics in (
            ("learning_curves", "Learning: mean over seeds, single seeds faint.", LEARNING_METRICS),
            ("training_health", "Health of the training, drawn likewise.", HEALTH_METRICS),
        ):
            if measured.intersection(metrics):
                draw = partial(learning_curves, curves, metrics=metrics, styles=styles)
                drawn.append((name, caption, draw))
    figures: list[dict[str, str]] = []
    for name, caption, draw in drawn:
        figure, data = draw()
        picture, _ = save(figure, data, folder, name)
        figures.append(
            {
                "name": name,
                "caption": caption,
                "light": b64encode(picture.read_bytes()).decode(),
                "dark": b64encode(png(figure, theme=DARK)).decode(),
            }
        )
    return figures
