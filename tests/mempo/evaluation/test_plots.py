from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from mempo.evaluation.canvas import DARK, LIGHT, finding, palette, png
from mempo.evaluation.plots import (
    probability_buckets,
    save,
    score_by_objectives,
    steps_buckets,
    tokens_by_objectives,
)
from mempo.evaluation.plots_learning import HEALTH_METRICS, LEARNING_METRICS, learning_curves
from mempo.evaluation.stats import crossed_interval

NAN = float("nan")


def task(method: str, seed: int, question: str, k: int = 2, **fields: Any) -> dict[str, Any]:
    keys = {"mode": "greedy", "objectives": k, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 100, "pt": 50}
    return {"method": method, "seed": seed, **keys, **scores, "steps": 3, **fields}


def evaluations() -> pd.DataFrame:
    """GRPO and MemPO, seeds 0 and 1, questions a and b at K = 2 and 4; MemPO is better by 0.25."""
    return pd.DataFrame(
        [
            task(
                method,
                seed,
                question,
                k,
                f1=0.1 * seed + 0.2 * (question == "b") + 0.25 * (method == "MemPO") + 0.02 * k,
                em=float(question == "b"),
                p_answer=0.3 if method == "GRPO" else 0.7,
                tt=100 * k if method == "GRPO" else 60 * k,
                steps=k + (question == "b"),
            )
            for method in ("MemPO", "GRPO")
            for seed in (0, 1)
            for question in "ab"
            for k in (2, 4)
        ]
    )


def curves(**values: list[list[float]]) -> pd.DataFrame:
    """values[method][seed][iteration] of reward/mean."""
    return pd.DataFrame(
        [
            {"method": m, "seed": s, "iteration": i, "metric": "reward/mean", "value": v}
            for m, seeds in values.items()
            for s, row in enumerate(seeds)
            for i, v in enumerate(row)
        ]
    )


def records(data: pd.DataFrame, **where: Any) -> list[dict[str, Any]]:
    """Rows with these values as dictionaries; a missing seed (of a mean) is None."""
    rows = data.astype(object).where(data.notna(), None).to_dict("records")
    named = [{str(name): value for name, value in row.items()} for row in rows]
    return [row for row in named if all(row[name] == value for name, value in where.items())]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def findings(figure: Figure) -> list[str]:
    return [" ".join(text.get_text() for text in axes.texts) for axes in figure.axes]


def legend_names(figure: Figure) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def picture(content: bytes) -> Image.Image:
    return Image.open(BytesIO(content))


# --- learning curves


def test_learning_curves_show_every_seed_and_their_mean():
    figure, data = learning_curves(curves(GRPO=[[0.0, 0.2], [0.2, 0.6]], MemPO=[[0.5, 0.9]]))
    means = records(data, seed=None)
    found = {(row["method"], row["iteration"]): row["value"] for row in means}
    expected = {("GRPO", 0): 0.1, ("GRPO", 1): 0.4, ("MemPO", 0): 0.5, ("MemPO", 1): 0.9}
    assert found == pytest.approx(expected)
    assert len(data) - len(means) == 6
    [axes] = figure.axes
    # Two faint seeds and the mean of GRPO; MemPO's one seed is its mean.
    assert len(axes.get_lines()) == 4
    assert titles(figure) == ["Reward"]
    assert legend_names(figure) == ["GRPO", "MemPO"]


def test_the_finding_of_a_curve_averages_its_last_five_iterations():
    figure, _ = learning_curves(curves(GRPO=[[1.0] * 9 + [0.0] * 5], MemPO=[[0.0] * 9 + [0.4] * 5]))
    assert findings(figure) == ["MemPO highest over the last 5 iterations: 0.4"]


def test_a_point_of_a_curve_is_a_round_of_iterations_where_objectives_take_turns():
    """(1 + 2 + 3) / 3 and (4 + 5 + 9) / 3; the seventh iteration begins a third round."""

    def drawn(table: pd.DataFrame) -> list[tuple[int, float]]:
        _, data = learning_curves(table)
        return [(row["iteration"], row["value"]) for row in records(data, seed=None)]

    table = curves(GRPO=[[1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 7.0]]).assign(round=3)
    table["iteration"] += 1
    assert drawn(table) == [(3, 2.0), (6, 6.0)]
    assert drawn(table[table["iteration"] < 3]) == [(1, 1.0), (2, 2.0)]  # no whole round: as it is
    better = table.assign(method="MemPO", value=table["value"] * 2)
    figure, _ = learning_curves(pd.concat([table, better]))
    assert findings(figure) == ["MemPO highest over the last 6 iterations: 8"]


def test_a_curve_without_a_better_side_names_no_leader():
    table = curves(GRPO=[[0.0]], MemPO=[[9.0]]).assign(metric="loss/kl")
    figure, _ = learning_curves(table, metrics=HEALTH_METRICS)
    assert (titles(figure), findings(figure)) == (["KL to the start policy"], [""])


@pytest.mark.parametrize("iterations", [1, 2, 40])
def test_iterations_are_counted_in_whole_numbers(iterations):
    figure, _ = learning_curves(curves(GRPO=[[0.5] * iterations]))
    [axes] = figure.axes
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_only_metrics_with_a_finite_value_get_a_panel():
    table = pd.concat(
        [
            curves(GRPO=[[0.0, NAN]]),
            curves(GRPO=[[NAN, float("inf")]]).assign(metric="memory/p_answer"),
            curves(GRPO=[[1.0]]).assign(metric="my/own"),
        ]
    )
    figure, data = learning_curves(table, metrics=("my/own", *LEARNING_METRICS))
    assert titles(figure) == ["my/own", "Reward"]
    assert np.isfinite(data["value"]).all()
    with pytest.raises(ValueError, match=r"curves has none of the metrics \['loss/kl'\]"):
        learning_curves(table, metrics=("loss/kl",))


def test_fault_51_curves_without_a_column_are_refused():
    with pytest.raises(ValueError, match=r"curves lacks the columns \['seed'\]"):
        learning_curves(curves(GRPO=[[1.0]]).drop(columns="seed"))


# --- scores and tokens by number of objectives


def test_scores_by_objectives_are_means_over_seeds_and_questions():
    figure, data = score_by_objectives(evaluations())
    f1 = records(data, metric="f1")
    mean = {(row["method"], row["objectives"]): row for row in f1 if row["seed"] is None}
    # GRPO at K = 2: seeds 0 and 1, questions 0 and 0.2 above 0.04: mean 0.05 + 0.1 + 0.04.
    assert mean["GRPO", 2]["value"] == pytest.approx(0.19)
    assert mean["MemPO", 4]["value"] == pytest.approx(0.05 + 0.1 + 0.08 + 0.25)
    expected = crossed_interval([[0.04, 0.24], [0.14, 0.34]], key=("f1", "GRPO", "2"))
    assert mean["GRPO", 2]["low"] == pytest.approx(expected.low)
    assert mean["GRPO", 2]["high"] == pytest.approx(expected.high)
    assert len(f1) == len(mean) + 8
    [seed] = records(data, metric="f1", method="GRPO", objectives=2, seed=1)
    assert seed["value"] == pytest.approx(0.24)
    assert titles(figure) == ["Exact match", "Word F1", "P(answer | memory)"]
    assert findings(figure) == ["", "MemPO highest at K = 4: 0.48", "MemPO highest at K = 4: 0.7"]
    assert figure.axes[-1].get_xticks().tolist() == [2, 4]


def test_a_seed_from_two_cold_starts_is_two_dots():
    rows = [task("GRPO", 7, q, f1=f1) | {"start": s} for s, f1 in (("one", 0.2), ("two", 0.6))
            for q in "ab"]  # fmt: skip
    figure, data = score_by_objectives(pd.DataFrame(rows))
    found = {row["start"]: row["value"] for row in records(data, metric="f1", seed=7)}
    assert found == pytest.approx({"one": 0.2, "two": 0.6})
    dots = [line for line in figure.axes[1].get_lines() if line.get_marker() == "."]
    assert sorted(np.asarray(dots[0].get_ydata())) == pytest.approx([0.2, 0.6])


def test_a_method_without_a_memory_is_left_out_of_its_panel_only():
    table = evaluations()
    table.loc[table["method"] == "GRPO", "p_answer"] = None
    _, data = score_by_objectives(table)
    assert {row["method"] for row in records(data, metric="f1")} == {"GRPO", "MemPO"}
    assert {row["method"] for row in records(data, metric="p_answer")} == {"MemPO"}
    figure, data = score_by_objectives(table.assign(p_answer=NAN))
    assert titles(figure) == ["Exact match", "Word F1"]
    assert set(data["metric"]) == {"em", "f1"}


def test_fewer_tokens_lead():
    figure, data = tokens_by_objectives(evaluations())
    assert titles(figure) == ["Total tokens", "Peak tokens"]
    assert findings(figure) == ["MemPO lowest at K = 4: 240", ""]
    total = records(data, metric="tt", seed=None)
    assert sorted(row["value"] for row in total) == [120.0, 200.0, 240.0, 400.0]


def test_only_the_mode_asked_for_is_drawn():
    table = pd.concat([evaluations(), evaluations().assign(mode="sampled", f1=1.0)])
    _, data = score_by_objectives(table, mode="sampled")
    assert {row["value"] for row in records(data, metric="f1")} == {1.0}
    with pytest.raises(ValueError, match="evaluations has no rows of mode 'beam'"):
        score_by_objectives(table, mode="beam")


def test_one_task_has_a_point_without_an_interval():
    figure, data = score_by_objectives(pd.DataFrame([task("GRPO", 0, "a", f1=0.4)]))
    [row] = records(data, metric="f1", seed=None)
    assert (row["value"], row["low"], row["high"]) == (0.4, None, None)
    assert findings(figure)[1] == "0.4 at K = 2"


# --- buckets


def test_probability_buckets_by_hand():
    table = pd.DataFrame(
        [
            task("MemPO", 0, "a", p_answer=0.1, em=0.0),
            task("MemPO", 0, "b", p_answer=0.15, em=1.0),
            task("MemPO", 0, "c", p_answer=1.0, em=1.0),
            task("MemPO", 0, "d", p_answer=NAN, em=1.0),
            task("ReAct", 0, "a", p_answer=None),
        ]
    )
    figure, data = probability_buckets(table)
    assert data["method"].unique().tolist() == ["MemPO"]
    assert data["n"].tolist() == [2, 0, 0, 0, 1]
    assert data["share"].tolist() == pytest.approx([2 / 3, 0, 0, 0, 1 / 3])
    np.testing.assert_array_equal(data["mean"], [0.5, NAN, NAN, NAN, 1.0])
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1"]
    with pytest.raises(ValueError, match=r"no evaluated task has P\(answer \| memory\)"):
        probability_buckets(table.assign(p_answer=None))


def test_step_buckets_hold_the_mean_probability():
    table = pd.DataFrame(
        [
            task("MemPO", 0, "a", steps=2, p_answer=0.2),
            task("MemPO", 0, "b", steps=2, p_answer=0.4),
            task("MemPO", 0, "c", steps=5, p_answer=NAN),
            task("MemPO", 0, "d", steps=4, p_answer=0.9),
        ]
    )
    figure, data = steps_buckets(table)
    assert data["low"].tolist() == [2, 3, 4, 5]
    assert data["n"].tolist() == [2, 0, 1, 1]
    np.testing.assert_allclose(data["mean"], [0.3, NAN, 0.9, NAN])
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["2", "3", "4", "5"]
    figure, data = steps_buckets(table, edges=(1, 3, 6))
    assert data["share"].tolist() == [0.5, 0.5]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1-2", "3-5"]


@pytest.mark.parametrize(("longest", "bucket_count"), [(1, 1), (8, 8), (9, 5), (40, 8), (100, 8)])
def test_steps_go_into_at_most_eight_buckets_of_one_width(longest, bucket_count):
    table = pd.DataFrame([task("MemPO", 0, str(n), steps=n) for n in range(1, longest + 1)])
    _, data = steps_buckets(table)
    assert len(data) == bucket_count
    assert len({row["high"] - row["low"] for row in records(data)}) == 1
    assert sum(row["n"] for row in records(data)) == longest


# --- how figures look


def test_a_method_looks_the_same_in_every_figure():
    alone, together = palette(["MemPO"]), palette(["ours", "GRPO", "MemPO", "SFT", "ReAct"])
    assert alone["MemPO"] == together["MemPO"]
    assert list(together) == ["SFT", "ReAct", "GRPO", "MemPO", "ours"]
    assert len({style.colour for style in together.values()}) == 5
    assert len({style.marker for style in together.values()}) == 5
    assert palette(["b", "a", "b"]) == palette(["a", "b"])


@pytest.mark.parametrize(
    ("values", "lowest", "words"),
    [
        ({"GRPO": 0.4, "MemPO": 0.5}, False, "MemPO highest at K = 6: 0.5"),
        ({"GRPO": 1234.4, "MemPO": 5000.0}, True, "GRPO lowest at K = 6: 1,234"),
        ({"GRPO": 0.495, "MemPO": 0.5}, False, ""),  # closer than 2 %
        ({"GRPO": 0.0, "MemPO": 0.0}, False, ""),
        ({"GRPO": 0.25}, False, "0.25 at K = 6"),
        ({"a": 0.1, "b": 0.9, "c": 0.895}, False, ""),
        ({}, False, ""),
    ],
)
def test_a_leader_is_named_where_a_reader_can_see_it(values, lowest, words):
    assert finding(values, "at K = 6", lowest=lowest) == words


def test_pictures_come_in_light_and_dark_and_leave_the_figure_as_it_was():
    figure, _ = learning_curves(curves(GRPO=[[0.0, 0.2]]))
    light, dark = png(figure), png(figure, theme=DARK)
    for content, theme in ((light, LIGHT), (dark, DARK)):
        pixels = np.asarray(picture(content).convert("RGB"))
        assert pixels.shape[1] == 800
        assert "#" + pixels[-2, 1].tobytes().hex() == theme.paper
    assert png(figure) == light


def test_a_saved_figure_is_a_picture_and_the_numbers_behind_it(tmp_path):
    figure, data = learning_curves(curves(GRPO=[[0.0, 0.2], [0.4, 0.4]]))
    paths = save(figure, data, tmp_path / "new" / "folder", "curve")
    assert [path.name for path in paths] == ["curve.png", "curve.csv"]
    assert picture(paths[0].read_bytes()).format == "PNG"
    numbers = pd.read_csv(paths[1])
    assert numbers.columns.tolist() == data.columns.tolist()
    assert numbers["value"].tolist() == pytest.approx([0.0, 0.2, 0.4, 0.4, 0.2, 0.3])
