from typing import Any

import pandas as pd

from mempo.evaluation.gains import difference_lines


def evaluations(seeds: int = 2, **fields: Any) -> pd.DataFrame:
    """MemPO is 0.25 better than GRPO and 500 tokens cheaper; ReAct was run with one seed."""
    same = {"mode": "greedy", "objectives": 2, "em": 0.0, "format": 1.0, "p_answer": None}
    same |= {"pt": 400, "steps": 3, **fields}
    runs = [
        (method, f1, tt, seed)
        for method, f1, tt in (("GRPO", 0.2, 2000), ("MemPO", 0.45, 1500))
        for seed in range(seeds)
    ]
    return pd.DataFrame(
        [
            {"method": method, "seed": seed, "question_id": q, "f1": f1, "tt": tt, **same}
            for method, f1, tt, seed in [*runs, ("ReAct", 0.2, 4000, 0)]
            for q in "ab"
        ]
    )


def test_gains_are_told_for_methods_with_all_of_the_baseline_s_runs() -> None:
    (line,) = difference_lines(evaluations())
    assert line.startswith("MemPO - GRPO, K = 2, greedy: EM +0.000 [+0.000, +0.000]")
    assert "F1 +0.250 [+0.250, +0.250] (by seed: +0.250 +0.250)" in line
    assert line.endswith("Total tokens -500 [-500, -500] (by seed: -500 -500)")


def test_weights_that_no_run_trained_stand_beside_all_of_the_baseline_s_runs() -> None:
    rows = evaluations().assign(trained=True, policy="")
    rows.loc[rows["method"] == "ReAct", ["trained", "policy"]] = [False, "start"]
    told = difference_lines(rows)
    assert [line.split(" - ")[0] for line in told] == ["ReAct", "MemPO"]
    assert "Total tokens +2,000 [+2,000, +2,000] (by seed: +2,000 +2,000)" in told[0]


def test_the_baseline_may_be_weights_that_no_run_trained() -> None:
    """GRPO's two runs stand beside the start, which was measured once: .2 and 2000 against it."""
    rows = evaluations().assign(trained=True, policy="", asked_needed=0.5)
    start = rows["method"] == "ReAct"
    rows.loc[start, ["trained", "policy", "asked_needed"]] = [False, "start", 0.25]
    told = difference_lines(rows, "ReAct")
    assert [line.split(",")[0] for line in told] == ["GRPO - ReAct", "MemPO - ReAct"]
    assert "Total tokens -2,000 [-2,000, -2,000] (by seed: -2,000 -2,000)" in told[0]
    assert told[0].endswith("Asked, needed +0.250 [+0.250, +0.250] (by seed: +0.250 +0.250)")


def test_from_three_pairs_of_runs_on_student_s_t_stands_beside_the_bootstrap() -> None:
    (line,) = difference_lines(evaluations(seeds=3))
    assert "F1 +0.250 [+0.250, +0.250] (t [+0.250, +0.250]; by seed: +0.250 +0.250" in line


def test_one_pair_of_runs_has_neither() -> None:
    lines = difference_lines(evaluations(seeds=1))
    assert [line.split(" - ")[0] for line in lines] == ["ReAct", "MemPO"]
    assert "F1 +0.250 [+0.250, +0.250];" in lines[1]


def test_a_cold_start_that_only_the_baseline_went_on_from_hides_a_method() -> None:
    rows = evaluations(seeds=1).assign(start="one")
    more = rows[rows["method"] == "GRPO"].assign(start="two")
    assert difference_lines(pd.concat([rows, more])) == []


def test_without_a_baseline_there_are_no_differences() -> None:
    rows = evaluations()
    assert difference_lines(rows[rows["method"] != "GRPO"]) == []
    assert difference_lines(pd.DataFrame()) == []
