from typing import Any

import pandas as pd
import pytest

from mempo.evaluation.plots_steps import context_by_step, has_steps, p_answer_by_step


def task(method: str, question: str, k: int = 2, **fields: Any) -> dict[str, Any]:
    keys = {"method": method, "seed": 0, "mode": "greedy", "objectives": k, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 100, "pt": 50}
    lists = {"step_p_answer": [], "step_mem_tokens": [], "step_context_tokens": []}
    return {**keys, **scores, "steps": 3, **lists, **fields}


def evaluations() -> pd.DataFrame:
    """Two tasks of MemPO at K = 2, of two and three steps, one of ReAct; one of each at K = 4."""
    mempo = [
        task("MemPO", "a", step_context_tokens=[10, 20], step_mem_tokens=[1, 3],
             step_p_answer=[0.25, 0.5]),
        task("MemPO", "b", step_context_tokens=[30, 40, 50], step_mem_tokens=[3, None, 7],
             step_p_answer=[0.75, None, 1.0]),
        task("MemPO", "c", k=4, step_context_tokens=[5], step_mem_tokens=[2], step_p_answer=[0.1]),
    ]  # fmt: skip
    react = [task("ReAct", "a", step_context_tokens=[10, 40, 90], step_mem_tokens=[None] * 3)]
    return pd.DataFrame([*mempo, *react])


def values(data: pd.DataFrame, method: str, metric: str, k: int = 2) -> list[tuple[int, float]]:
    one = data.query("method == @method and metric == @metric and objectives == @k")
    return list(zip(one["step"].tolist(), one["value"].tolist(), strict=True))


def test_context_and_memory_are_means_over_the_tasks_that_got_so_far():
    figure, data = context_by_step(evaluations())
    assert values(data, "MemPO", "step_context_tokens") == [(1, 20.0), (2, 30.0), (3, 50.0)]
    # The second memory of b was never written.
    assert values(data, "MemPO", "step_mem_tokens") == [(1, 2.0), (2, 3.0), (3, 7.0)]
    assert values(data, "ReAct", "step_context_tokens") == [(1, 10.0), (2, 40.0), (3, 90.0)]
    assert values(data, "ReAct", "step_mem_tokens") == []
    assert data.query("method == 'MemPO' and objectives == 2")["n"].tolist() == [2, 2, 1, 2, 1, 1]
    # Drawn is the largest K alone.
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Context of a step, K = 4", "Length of its memory, K = 4"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 1]


def test_the_worth_of_a_memory_by_step():
    figure, data = p_answer_by_step(evaluations())
    assert values(data, "MemPO", "step_p_answer") == [(1, 0.5), (2, 0.5), (3, 1.0)]
    assert set(data["method"]) == {"MemPO"}
    [axes] = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.1 in the last step"]


def test_the_passes_of_a_question_are_one_in_the_interval():
    twice = pd.concat([evaluations(), evaluations()], ignore_index=True)
    _, once_data = p_answer_by_step(evaluations())
    _, twice_data = p_answer_by_step(twice)
    pd.testing.assert_frame_equal(once_data.drop(columns="n"), twice_data.drop(columns="n"))


def test_tables_of_older_runs_have_no_lists():
    table = evaluations().drop(columns="step_p_answer")
    assert not has_steps(table, "step_p_answer")
    assert has_steps(table, "step_mem_tokens")
    assert not has_steps(table[table["method"] == "ReAct"], "step_mem_tokens")
    with pytest.raises(ValueError, match=r"no evaluated task has the lists \['step_p_answer'\]"):
        p_answer_by_step(table)


def test_rows_with_and_without_lists_can_stand_together():
    mixed = pd.concat([evaluations(), pd.DataFrame([task("GRPO", "a")])], ignore_index=True)
    mixed.loc[mixed["method"] == "GRPO", "step_context_tokens"] = float("nan")
    _, data = context_by_step(mixed)
    assert set(data["method"]) == {"MemPO", "ReAct"}
