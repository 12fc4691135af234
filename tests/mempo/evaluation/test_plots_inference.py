from typing import Any

import pandas as pd
import pytest

from mempo.evaluation.canvas import palette
from mempo.evaluation.plots_inference import histories, score_by_history, score_by_tokens


def task(method: str, question: str, k: int = 2, **fields: Any) -> dict[str, Any]:
    keys = {"method": method, "seed": 0, "mode": "greedy", "objectives": k, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 100, "pt": 50}
    return {**keys, **scores, "steps": 3, **fields}


def kept(method: str, history: str, f1: float, policy: str = "w", seed: int = 0) -> dict[str, Any]:
    return task(method, "a", f1=f1, history=history, policy=policy, seed=seed)


# --- F1 for tokens


def test_f1_against_tokens_has_a_point_per_method_and_objectives():
    rows = [
        task("MemPO", "a", f1=0.5, tt=100),
        task("MemPO", "b", f1=1.0, tt=300),
        task("MemPO", "a", k=4, f1=0.25, tt=500),
        task("ReAct", "a", f1=0.75, tt=900),
    ]
    figure, data = score_by_tokens(pd.DataFrame(rows))
    assert data[["method", "objectives", "tt", "f1"]].to_numpy().tolist() == [
        ["MemPO", 2, 200.0, 0.75],
        ["MemPO", 4, 500.0, 0.25],
        ["ReAct", 2, 900.0, 0.75],
    ]
    [axes] = figure.axes
    assert [text.get_text() for text in axes.texts] == ["2", "2", "4"]


def test_a_method_is_one_point_whatever_its_cold_starts():
    rows = [task("GRPO", "a", f1=f1) | {"start": s} for s, f1 in (("one", 0.25), ("two", 0.75))]
    _, data = score_by_tokens(pd.DataFrame(rows))
    names = ["method", "objectives", "tt", "tt_low", "tt_high", "f1", "f1_low", "f1_high"]
    assert data.columns.tolist() == names
    assert data["f1"].tolist() == [0.5]


def test_points_that_lie_together_are_numbered_once():
    rows = [task(method, "a", f1=0.5, tt=100) for method in ("GRPO", "MemPO")]
    figure, data = score_by_tokens(pd.DataFrame(rows))
    assert len(data) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["2"]


# --- figure (d)


def test_histories_of_one_policy_are_a_line_in_the_order_of_what_is_seen():
    names = {"all": 0.75, "1": 0.25, "12": 0.6, "3": 0.5, "memory": 0.125}
    rows = [kept(f"MemPO, history {h}", h, f1) for h, f1 in names.items()]
    figure, data = score_by_history(pd.DataFrame(rows))
    means = data[data["seed"].isna() & (data["metric"] == "f1")]
    assert means["history"].tolist() == ["memory", "1", "3", "12", "all"]
    assert means["value"].tolist() == [0.125, 0.25, 0.5, 0.6, 0.75]
    assert set(data["policy"]) == {"MemPO, history"}
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["memory", "1", "3", "12", "all"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Word F1 by history kept", "P(answer | memory) by history kept"]


def test_weights_tell_policies_apart_and_not_their_names():
    rows = [
        kept("x", "1", 0.1, "w0", seed=0),
        kept("x", "1", 0.3, "w1", seed=1),
        kept("y", "all", 0.5, "w0", seed=0),  # the second seed's run failed
        kept("GRPO 1", "1", 0.6, "g"),
        kept("GRPO 3", "3", 0.8, "g"),
        kept("alone", "1", 0.9, "z"),  # one history: nothing to compare
        kept("trained", "1", 0.9, ""),
        kept("trained 3", "3", 0.9, ""),  # trained so, not only evaluated so
        kept("ReAct", "", 0.9, "w0"),
    ]
    table = pd.DataFrame(rows)
    found = histories(table)
    assert found.groupby("policy")["method"].apply(set).to_dict() == {
        "GRPO": {"GRPO 1", "GRPO 3"},
        "policy 3": {"x", "y"},
    }
    figure, data = score_by_history(table)
    means = data[data["seed"].isna() & (data["metric"] == "f1")]
    assert means.set_index(["policy", "history"])["value"].to_dict() == pytest.approx(
        {("policy 3", "1"): 0.2, ("policy 3", "all"): 0.5, ("GRPO", "1"): 0.6, ("GRPO", "3"): 0.8}
    )
    [legend] = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["GRPO, K = 2", "policy 3, K = 2"]
    colours = {line.get_color() for line in figure.axes[0].get_lines()}
    looks = palette(table["method"])
    assert {looks["GRPO 1"].colour, looks["x"].colour} <= colours


def test_without_several_histories_there_is_no_figure():
    one = pd.DataFrame([kept("MemPO", "1", 0.5)])
    for table in (one, one.drop(columns=["history", "policy"])):
        assert histories(table).empty
        with pytest.raises(ValueError, match=r"no policy was evaluated with more than one agent"):
            score_by_history(table)
