"""A sweep as the page shows it: its trials, a row each, with what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mempo.config.space import Dimension, shown
from mempo.evaluation.stats import require_columns
from mempo.evaluation.tables import number

COLUMNS = ("trial", "state", "rank", "value", "by_seed", "reason")
IMPORTANCE_TRIALS = 10  # with fewer complete trials it is a rough guide, and the page says so


@dataclass(frozen=True)
class SweepTable:
    """What a sweep has come to.

    `trials` has a row per trial: `trial` (its number), `state` ('complete', 'pruned', 'failed',
    'running', 'cut off'), `rank` (1: the winner; missing where it is no candidate), `value`
    (NaN unless it is complete), `by_seed` and `reason` in words, and a column per setting of
    `space`. `importance`: share of what each setting explains; empty where it is unknown.
    `findings`: what came out of it, in sentences.
    """

    name: str
    method: str
    metric: str
    seeds: tuple[int, ...]
    space: tuple[Dimension, ...]
    trials: pd.DataFrame
    importance: Mapping[str, float]
    findings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = (*COLUMNS, *(dimension.setting for dimension in self.space))
        require_columns(self.trials, columns, name="trials")

    @property
    def winner(self) -> int | None:
        """The number of the best trial; None where none is complete."""
        best = self.trials.loc[self.trials["rank"] == 1, "trial"]
        return None if best.empty else int(best.iloc[0])

    @property
    def counts(self) -> str:
        """'12 trials: 9 complete, 2 pruned, 1 failed'."""
        states = self.trials["state"].value_counts()
        order = [s for s in ("complete", "pruned", "failed", "running", "cut off") if s in states]
        told = ", ".join(f"{states[state]} {state}" for state in order)
        plural = "" if len(self.trials) == 1 else "s"
        return f"{len(self.trials)} trial{plural}: {told}" if told else "no trial has begun"

    @property
    def importance_note(self) -> str:
        """What the importance is worth."""
        complete = int((self.trials["state"] == "complete").sum())
        if not self.importance:
            return (
                f"What each setting matters is not shown: {complete} complete trials are too few, "
                "or their values are all equal."
            )
        rough = ", and a rough guide" if complete < IMPORTANCE_TRIALS else ""
        return f"Importance is from {complete} complete trials{rough} (PED-ANOVA)."


def trial_rows(sweep: SweepTable) -> list[dict[str, Any]]:
    """The cells of the table of trials, the best first, those without a value last."""
    ordered = sweep.trials.sort_values(["rank", "trial"], na_position="last", kind="stable")
    return [
        {
            "trial": int(row["trial"]),
            "winner": row["rank"] == 1,
            "settings": [shown(row[dimension.setting]) for dimension in sweep.space],
            "value": number(row["value"], "{:.4f}"),
            "by_seed": row["by_seed"],
            "state": row["state"],
            "reason": row["reason"],
        }
        for row in ordered.to_dict("records")
    ]


def trials_text(sweep: SweepTable) -> str:
    """The table of trials for a terminal."""
    names = [dimension.setting for dimension in sweep.space]
    lines = [["trial", *names, sweep.metric, "by seed", "state", ""]]
    for row in trial_rows(sweep):
        value, state = str(row["value"]), str(row["state"])
        last = "<- best" if row["winner"] else str(row["reason"])
        lines.append([str(row["trial"]), *row["settings"], value, row["by_seed"], state, last])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([f"{sweep.name}: {sweep.counts}", "", *text, "", *sweep.findings])
