"""Which figures a report has: drawn, saved with the numbers behind them, and inlined."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mempo.evaluation.canvas import DARK, Style, png, save
from mempo.evaluation.plots import (
    probability_buckets,
    score_by_objectives,
    steps_buckets,
    tokens_by_objectives,
)
from mempo.evaluation.plots_inference import histories, score_by_history, score_by_tokens
from mempo.evaluation.plots_learning import (
    COLD_START_METRICS,
    HEALTH_METRICS,
    LEARNING_METRICS,
    QUALITY_METRICS,
    learning_curves,
)
from mempo.evaluation.plots_steps import context_by_step, has_steps, p_answer_by_step
from mempo.evaluation.plots_sweep import (
    importance_bars,
    parallel_coordinates,
    trials_history,
)
from mempo.evaluation.stats import require_columns
from mempo.evaluation.sweeps import SweepTable
from mempo.evaluation.tables import MODES, ordered_modes

Draw = Callable[[], tuple[Figure, pd.DataFrame]]


def draw_figures(
    folder: Path,
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    styles: Mapping[str, Style],
) -> list[dict[str, str]]:
    """Every picture that the tables have numbers for, as `folder/NAME.png` and `folder/NAME.csv`.

    Returns what the page needs of each: `name, caption` and the picture in base64, `light` and
    `dark`. Letters in captions are those of the paper's figures.
    """
    return _inlined(folder, [*_evaluated(evaluations, styles), *_trained(curves, styles)])


def draw_sweep(folder: Path, sweep: SweepTable, prefix: str) -> list[dict[str, str]]:
    """The pictures of a sweep, as `draw_figures` has its own; their names begin with `prefix`."""
    if sweep.trials.empty:
        return []
    wanted = [
        ("trials", "Every trial, and the best so far.", trials_history),
        ("parallel", "A line is a trial, from its settings to its value.", parallel_coordinates),
    ]
    if sweep.importance:
        wanted.insert(1, ("importance", sweep.importance_note, importance_bars))
    return _inlined(folder, [(f"{prefix}_{n}", text, partial(f, sweep)) for n, text, f in wanted])


def _inlined(folder: Path, drawn: list[tuple[str, str, Draw]]) -> list[dict[str, str]]:
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


def _evaluated(
    evaluations: pd.DataFrame, styles: Mapping[str, Style]
) -> list[tuple[str, str, Draw]]:
    if evaluations.empty:
        return []
    mode = ordered_modes(evaluations["mode"])[0]
    rows = evaluations[evaluations["mode"] == mode]
    how = f"{MODES.get(mode, mode)}."
    bars = "Bars: 95 % bootstrap intervals over seeds and questions; dots: seeds."
    steps = "Mean over the tasks that got so far, at the largest K; the numbers have every K."
    known = bool(rows["p_answer"].notna().any())
    listed = (
        has_steps(rows, "step_context_tokens"),
        has_steps(rows, "step_p_answer"),
    )
    wanted = (
        (
            known,
            "probability_buckets",
            f"(a) P(answer | last memory), all K together. {how}",
            probability_buckets,
        ),
        (True, "steps_buckets", f"(b) Steps, all K together. {how}", steps_buckets),
        (
            True,
            "score_by_objectives",
            f"(c) Quality by number of objectives. {how} {bars}",
            score_by_objectives,
        ),
        (
            not histories(rows).empty,
            "score_by_history",
            f"(d) One policy, evaluated with more or less of its history kept. {how} {bars}",
            score_by_history,
        ),
        (
            True,
            "tokens_by_objectives",
            f"Cost by number of objectives. {how} {bars}",
            tokens_by_objectives,
        ),
        (
            True,
            "score_by_tokens",
            f"What the tokens buy: up and left is better. {how}",
            score_by_tokens,
        ),
        (listed[0], "context_by_step", f"Length by step. {steps} {how}", context_by_step),
        (
            listed[1],
            "p_answer_by_step",
            f"What the memory is worth as it grows. {steps} {how}",
            p_answer_by_step,
        ),
    )
    return [
        (name, caption, partial(draw, evaluations, mode=mode, styles=styles))
        for there, name, caption, draw in wanted
        if there
    ]


def _trained(curves: pd.DataFrame, styles: Mapping[str, Style]) -> list[tuple[str, str, Draw]]:
    if curves.empty:
        return []
    require_columns(curves, ("method", "metric", "value"), name="curves")
    known = curves[np.isfinite(curves["value"].astype(float))]
    measured = set(known["metric"])
    if not known.loc[known["metric"] == "loss/kl", "value"].any():
        curves = curves[curves["metric"] != "loss/kl"]  # 0 throughout: it was not computed
        measured -= {"loss/kl"}
    every = int(curves["round"].max()) if "round" in curves else 1
    point = f" A point is a round of {every} iterations." if every > 1 else ""
    learning = f"Learning: mean over seeds, single seeds faint.{point}"
    return [
        (name, caption, partial(learning_curves, curves, metrics=metrics, styles=styles))
        for name, caption, metrics in (
            ("learning_curves", learning, LEARNING_METRICS),
            (
                "memory_quality",
                "What memories are worth and keep, drawn likewise.",
                QUALITY_METRICS,
            ),
            ("cold_start", "Learning of the cold start.", COLD_START_METRICS),
            ("training_health", "Health of the training, drawn likewise.", HEALTH_METRICS),
        )
        if measured.intersection(metrics)
    ]
