"""One self-contained HTML page of what runs have shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from mempo.evaluation.canvas import palette
from mempo.evaluation.pictures import draw_figures, draw_sweep
from mempo.evaluation.stats import checked, summary_table
from mempo.evaluation.sweeps import SweepTable, trial_rows
from mempo.evaluation.tables import (
    BASELINE,
    NOTHING,
    difference_rows,
    headline_tables,
    paper_cells,
    paper_table,
)
from mempo.evaluation.viewer import templates, trajectories_html


def write_report(
    folder: str | Path,
    *,
    title: str,
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    trajectories: Sequence[Mapping[str, Any]],
    notes: list[str],
    facts: dict[str, str],
    baseline: str = BASELINE,
    sweeps: Sequence[SweepTable] = (),
) -> Path:
    """Write `folder/report.html`, its tables as CSV and `folder/figures/`; returns the page.

    The page needs no other file: pictures are inlined, in light and dark. `summary.csv` and
    `paper_table.csv` are its tables, `figures/` holds each picture as PNG with the numbers behind
    it as CSV. A table without rows (and so without columns) and an empty list are fine: the page
    leaves out what they would have filled, and so it does for columns that older runs lack.
    `sweeps` have a section of their own, their tables are `sweep.csv`, `sweep2.csv` and so on.
    `baseline`: the method that differences are to. Raises ValueError on other missing columns.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = evaluations if evaluations.empty else checked(evaluations)
    summary = summary_table(rows)
    paper = pd.DataFrame() if rows.empty else paper_table(rows, baseline)
    if not rows.empty:
        summary.to_csv(folder / "summary.csv", index=False)
        paper.to_csv(folder / "paper_table.csv", index=False)
    searched = [_sweep_section(folder, sweep, i) for i, sweep in enumerate(sweeps, start=1)]
    # One palette for the whole page, or a method could change its colour between its parts.
    methods = [*rows.get("method", []), *curves.get("method", [])]
    styles = palette([*methods, *(str(t["method"]) for t in trajectories)])
    page = (
        templates()
        .get_template("report.html.j2")
        .render(
            title=title,
            papers=[] if paper.empty else paper_cells(paper),
            tables=headline_tables(summary),
            sweeps=searched,
            asks="queries" in summary,
            differences=difference_rows(rows, baseline),
            baseline=baseline,
            figures=draw_figures(folder / "figures", rows, curves, styles),
            styles=styles,
            trajectories=Markup(trajectories_html(trajectories, styles)) if trajectories else "",
            notes=notes,
            facts=facts,
            nothing=NOTHING,
        )
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _sweep_section(folder: Path, sweep: SweepTable, number: int) -> dict[str, Any]:
    """What the page needs of a sweep; its table and pictures are written beside the page."""
    prefix = "sweep" if number == 1 else f"sweep{number}"
    sweep.trials.to_csv(folder / f"{prefix}.csv", index=False)
    return {
        "sweep": sweep,
        "rows": trial_rows(sweep),
        "figures": draw_sweep(folder / "figures", sweep, prefix),
    }
