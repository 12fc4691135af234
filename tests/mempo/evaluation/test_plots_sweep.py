from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from mempo.config.space import Dimension
from mempo.evaluation.canvas import DARK, png
from mempo.evaluation.plots_sweep import importance_bars, parallel_coordinates, trials_history
from mempo.evaluation.report import write_report
from mempo.evaluation.sweeps import SweepTable, trial_rows, trials_text

NAN = float("nan")
SPACE = (
    Dimension("learner.lr", low=1e-4, high=1e-2, log=True),
    Dimension("learner.epochs", low=1, high=5, whole=True),
    Dimension("memory.weight", choices=(0, 0.5, 1.0)),
)


def trial(number: int, state: str, value: float, rank: float, lr: float, **more: Any) -> dict:
    settings = {"learner.lr": lr, "learner.epochs": 3, "memory.weight": 0.5} | more
    why = "" if state == "complete" else "because"
    row = {"trial": number, "state": state, "rank": rank, "value": value}
    return row | {"by_seed": "1: 0.5", "reason": why} | settings


def sweep(*rows: dict, **more: Any) -> SweepTable:
    rows = rows or (
        trial(0, "complete", 0.2, 3, 1e-4),
        trial(1, "failed", NAN, NAN, 1e-2),
        trial(2, "complete", 0.6, 1, 1e-3, **{"memory.weight": 1.0, "learner.epochs": 5}),
        trial(3, "pruned", NAN, NAN, 1e-2, **{"memory.weight": 0}),
        trial(4, "complete", 0.4, 2, 1e-2, **{"learner.epochs": 1}),
        trial(5, "cut off", NAN, NAN, 1e-2),
    )
    table = pd.DataFrame(list(rows)).astype({"memory.weight": object})
    importance = {"learner.lr": 0.75, "memory.weight": 0.25, "learner.epochs": 0.0}
    return SweepTable("s", "tpe", "eval/n2/f1", (1, 2), SPACE, table, importance, **more)


def test_the_best_so_far_leaves_out_what_has_no_value():
    figure, data = trials_history(sweep())
    assert data["trial"].tolist() == [0, 1, 2, 3, 4, 5]
    assert data["best"].tolist() == [0.2, 0.2, 0.6, 0.6, 0.6, 0.6]
    (axes,) = figure.axes
    points = {line.get_label(): line for line in axes.lines}
    assert points["trial"].get_ydata().tolist() == [0.2, 0.6, 0.4]  # pyright: ignore
    lost = points["failed: no value"]
    assert lost.get_xdata().tolist() == [1]  # pyright: ignore[reportAttributeAccessIssue]
    # It stands at the foot of the panel, not at a value.
    assert lost.get_transform() == axes.get_xaxis_transform()


def test_a_sweep_that_begins_with_failures_has_no_best_until_there_is_a_value():
    rows = (trial(0, "failed", NAN, NAN, 1e-4), trial(1, "complete", 0.0, 1, 1e-4))
    data = trials_history(sweep(*rows))[1]
    assert data["best"].isna().tolist() == [True, False]
    only = sweep(rows[0])
    assert only.winner is None and trials_history(only)[1]["best"].isna().all()
    assert parallel_coordinates(only)[1]["learner.lr"].tolist() == [0.0]


def test_axes_are_even_for_choices_and_logarithmic_where_the_range_is():
    figure, data = parallel_coordinates(sweep())
    by_trial = data.set_index("trial")
    assert by_trial.loc[[0, 2, 4], "learner.lr"].tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert by_trial.loc[[4, 0, 2], "learner.epochs"].tolist() == [0.0, 0.5, 1.0]
    assert by_trial.loc[[3, 0, 2], "memory.weight"].tolist() == [0.0, 0.5, 1.0]
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]  # pyright: ignore
    ends = sorted(float(line.get_ydata()[-1]) for line in lines)  # pyright: ignore
    assert ends[:3] == sorted(ends[:3]) and ends[2] < 0  # those without a value end below
    assert ends[3:] == pytest.approx([0.0, 0.5, 1.0])
    best = max(lines, key=lambda line: line.get_linewidth())
    assert best.get_ydata().tolist() == pytest.approx([0.5, 1.0, 1.0, 1.0])  # pyright: ignore
    texts = {text.get_text() for text in figure.findobj(type(axes.title))}  # pyright: ignore
    assert {"0.0001", "0.001", "0.01", "0", "0.5", "1.0", "learner.\nlr", "eval/\nn2/f1"} <= texts


def test_equal_values_and_a_single_trial_can_be_drawn():
    same = [trial(n, "complete", 0.3, n + 1, 1e-3) for n in range(2)]
    assert parallel_coordinates(sweep(*same))[1]["value"].tolist() == [0.3, 0.3]
    trials_history(sweep(same[0]))


def test_importance_is_sorted_and_refused_where_it_is_unknown():
    data = importance_bars(sweep())[1]
    assert data["setting"].tolist() == ["learner.lr", "memory.weight", "learner.epochs"]
    unknown = replace(sweep(), importance={})
    with pytest.raises(ValueError, match=r"importance .* unknown"):
        importance_bars(unknown)
    assert "3 complete trials are too few" in unknown.importance_note
    assert "a rough guide" in sweep().importance_note


def test_the_table_has_the_best_first_and_no_number_for_what_has_no_value():
    rows = trial_rows(sweep())
    assert [row["trial"] for row in rows] == [2, 4, 0, 1, 3, 5]
    assert [row["winner"] for row in rows] == [True] + [False] * 5
    assert rows[0]["settings"] == ["0.001", "5", "1"] and rows[0]["value"] == "0.6000"
    assert {row["value"] for row in rows[3:]} == {"\u2013"}
    text = trials_text(sweep(findings=("It was the second.",)))
    assert "s: 6 trials: 3 complete, 1 pruned, 1 failed, 1 cut off" in text
    assert text.endswith("It was the second.") and "<- best" in text.splitlines()[3]


def test_a_table_without_its_columns_is_refused():
    with pytest.raises(ValueError, match=r"trials lacks the columns \['memory.weight'\]"):
        one = sweep()
        replace(one, trials=one.trials.drop(columns="memory.weight"))


def test_the_page_has_a_section_for_each_sweep(tmp_path):
    empty = pd.DataFrame()
    page = write_report(
        tmp_path, title="t", evaluations=empty, curves=empty, trajectories=[], notes=[], facts={},
        sweeps=[sweep(findings=("<b> is text",)), replace(sweep(), importance={})],
    )  # fmt: skip
    html = page.read_text()
    assert html.count("<h2>Sweep s</h2>") == 2 and "&lt;b&gt; is text" in html
    names = {path.name for path in (tmp_path / "figures").glob("*.png")}
    first = {f"sweep_{name}.png" for name in ("trials", "importance", "parallel")}
    assert names == first | {"sweep2_trials.png", "sweep2_parallel.png"}
    assert len(pd.read_csv(tmp_path / "sweep2.csv")) == 6


@pytest.mark.parametrize("draw", [trials_history, importance_bars, parallel_coordinates])
def test_a_picture_is_drawn_in_both_themes(draw):
    figure, _ = draw(sweep())
    assert png(figure) != png(figure, theme=DARK)
