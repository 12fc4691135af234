"""A picture of what the bench found."""

from __future__ import annotations

import re
from typing import Any

from mempo.evaluation.canvas import canvas, dress, png

NAMES = {  # key -> what a person calls it
    "grpo_step_vs_trl": "GRPO step, TRL",
    "grpo_step_vs_trl_tuned": "GRPO step, TRL tuned",
    "score_vs_rows_t3": "scoring T=3, row by row",
    "score_vs_rows_t6": "scoring T=6, row by row",
    "score_vs_rows_t10": "scoring T=10, row by row",
    "score_vs_padded_t10": "scoring T=10, best batches",
    "score_vs_padded16_t10": "scoring T=10, batches of 16",
    "train_vs_padded": "update, padded rows",
    "train_vs_packed": "update, packed rows",
}
BLUE, GREY = "#0072B2", "#888888"


def draw(found: dict[str, Any]) -> bytes:
    """PNG: how many times longer each peer takes, and the time of scoring by length of history.

    found: what `flows.bench.measure_all` returns; what is not in it is left out.
    """
    known = {**found["others"], **found}
    keys = [key for key in NAMES if key in known]
    laps = found["parts"].get("history", {}).get("laps", {})
    figure, panels = canvas(bool(keys) + bool(laps), height=2.6)
    if keys:
        axes, rows = panels[0], range(len(keys))
        spread = [
            [known[key] - found["spread"][key][0] for key in keys],
            [found["spread"][key][1] - known[key] for key in keys],
        ]
        values = [known[key] for key in keys]
        axes.barh(rows, values, xerr=spread, color=BLUE, ecolor=GREY, capsize=2)
        for row, key in zip(rows, keys, strict=True):
            axes.annotate(
                f"{known[key]:.1f}x", (found["spread"][key][1], row), (3, 0), fontsize=8,
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.axvline(1, color=GREY, lw=0.8)
        axes.margins(x=0.1)
        dress(axes, title="How many times longer a peer takes", ylabel="")
        axes.set_yticks(rows, [NAMES[key] for key in keys], fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", lw=0.7)
    if laps:
        axes = panels[-1]
        steps = [int(number) for name in laps for number in re.findall(r"T=(\d+)", name)]
        seconds = [sorted(lap["wall"] for lap in of) for of in laps.values()]
        axes.plot(steps, [of[len(of) // 2] for of in seconds], "o-", color=BLUE)
        axes.vlines(steps, [of[0] for of in seconds], [of[-1] for of in seconds], color=GREY)
        axes.set_ylim(bottom=0)
        axes.set_xticks(steps)
        axes.set_xlabel("steps of a trajectory (200 tokens each)", fontsize=9)
        exponent = known["score_history_growth_exponent"]
        dress(
            axes,
            title="Scoring P(answer | history)",
            subtitle=f"time grows with the history to the power of {exponent:.2f}",
            ylabel="seconds",
        )
    return png(figure)
