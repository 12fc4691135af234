from typing import Any

import pandas as pd
import pytest

from mempo.evaluation.stats import crossed_interval, summary_table
from mempo.evaluation.tables import (
    difference_rows,
    headline_tables,
    interval,
    paper_cells,
    paper_table,
    terminal_table,
)

NAN = float("nan")


def task(method: str, seed: int, question: str, k: int = 2, **fields: Any) -> dict[str, Any]:
    keys = {"mode": "greedy", "objectives": k, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 1000, "pt": 400}
    return {"method": method, "seed": seed, **keys, **scores, "steps": 3, **fields}


def study(seeds: int = 3) -> pd.DataFrame:
    """MemPO gains 0.1, 0.2, 0.3 ... by seed over GRPO; question b is 0.2 easier for both."""
    return pd.DataFrame(
        [
            task(method, seed, q, f1=0.1 + 0.2 * (q == "b") + gain * 0.1 * (seed + 1))
            for method, gain in (("MemPO", 1), ("GRPO", 0))
            for seed in range(seeds)
            for q in "ab"
        ]
    )


def test_the_paper_s_table_by_hand():
    table = paper_table(study())
    assert table["metric"].tolist() == ["f1", "em", "tt", "pt"] * 2
    grpo, mempo = (
        table.query("method == @name and metric == 'f1'").to_dict("records")[0]
        for name in ("GRPO", "MemPO")
    )
    assert (grpo["mean"], mempo["mean"]) == pytest.approx((0.2, 0.4))
    assert pd.isna(grpo["difference"]) and grpo["pairs"] == 0
    assert (mempo["difference"], mempo["pairs"]) == pytest.approx((0.2, 6))
    expected = crossed_interval(
        [[0.1] * 2, [0.2] * 2, [0.3] * 2], key=("paired", "f1", "MemPO", "greedy", "2")
    )
    found = (mempo["difference_low"], mempo["difference_high"])
    assert found == pytest.approx((expected.low, expected.high))
    # Differences 0.1, 0.2 and 0.3: s = 0.1, t at 2 degrees of freedom 4.3027.
    reach = 4.302653 * 0.1 / 3**0.5
    assert (mempo["t_low"], mempo["t_high"]) == pytest.approx((0.2 - reach, 0.2 + reach))


def test_a_method_without_some_objectives_has_dashes_there():
    rows = pd.concat([study(1), pd.DataFrame([task("GRPO", 0, "c", k=4, f1=0.25)])])
    [table] = paper_cells(paper_table(rows))
    assert (table["name"], table["objectives"]) == ("Greedy decoding", [2, 4])
    cells = {row["method"]: [cell["mean"] for cell in row["cells"]] for row in table["rows"]}
    assert list(cells) == ["GRPO", "MemPO"]
    assert cells["GRPO"][4:] == ["0.250", "0.000", "1,000", "400"]
    assert cells["MemPO"][4:] == ["\u2013"] * 4


def test_a_difference_is_marked_only_where_its_interval_leaves_out_0():
    rows = study()
    # Gains of 0.3, 0.4 and 0.5: t from 0.4 - 4.3027 * 0.1 / sqrt(3) on.
    rows.loc[rows["method"] == "MemPO", "f1"] += 0.2
    [table] = paper_cells(paper_table(rows))
    [_, mempo] = table["rows"]
    f1, em, *_ = mempo["cells"]
    assert f1["difference"] == "+0.400" and f1["leaves_out_zero"]
    assert f1["t"] == "[+0.152, +0.648]"
    assert em["difference"] == "+0.000" and not em["leaves_out_zero"]
    assert em["around"] == "[+0.000, +0.000]"


@pytest.mark.parametrize(("seeds", "t"), [(1, ""), (2, ""), (3, "[-0.048, +0.448]")])
def test_a_bootstrap_over_few_runs_marks_nothing_that_student_s_t_does_not(seeds: int, t: str):
    [table] = paper_cells(paper_table(study(seeds)))
    f1 = table["rows"][1]["cells"][0]
    assert f1["around"].startswith("[+") and f1["t"] == t  # the bootstrap leaves out 0
    assert not f1["leaves_out_zero"]
    assert not difference_rows(study(seeds))[0]["leaves_out_zero"]


def untrained(method: str, seed: int, f1: float, policy: str = "start") -> dict[str, Any]:
    return task(method, seed, "a", f1=f1, trained=False, policy=policy)


def grpo(*f1: float, start: str = "") -> list[dict[str, Any]]:
    more = {"start": start} if start else {}
    return [
        task("GRPO", i, "a", f1=value, trained=True, policy=f"{start}{i}") | more
        for i, value in enumerate(f1, start=1)
    ]


def test_weights_that_no_run_trained_are_paired_with_every_run_of_the_baseline():
    rows = pd.DataFrame([*grpo(0.9, 0.5, 0.5), untrained("SFT", 1, 0.7)])
    row = paper_table(rows).query("method == 'SFT' and metric == 'f1'").iloc[0]
    # 0.7 minus the mean 1.9 / 3, not minus the 0.9 of the seed that it happens to share.
    assert row["difference"] == pytest.approx(0.2 / 3)
    assert (row["pairs"], row["runs"]) == (3, 3)
    assert difference_rows(rows)[0]["per_seed"] == [
        "seed 1: -0.200", "seed 2: +0.200", "seed 3: +0.200"
    ]  # fmt: skip
    # Evaluated with other seeds too, the weights are still one policy: its mean counts.
    more = pd.concat([rows, pd.DataFrame([untrained("SFT", 9, 0.5)])])
    assert difference_rows(more)[0]["per_seed"][0] == "seed 1: -0.300"


def test_untrained_weights_are_paired_within_their_cold_start():
    rows = pd.DataFrame(
        [
            *grpo(0.9, 0.5, start="one"),
            *grpo(0.2, start="two"),
            untrained("SFT", 1, 0.7) | {"start": "one"},
            untrained("SFT", 1, 0.3, "other") | {"start": "two"},
            untrained("External", 1, 0.3) | {"start": "three"},
        ]
    )
    assert difference_rows(rows)[0]["per_seed"] == [
        "one seed 1: -0.200", "one seed 2: +0.200", "two seed 1: +0.100"
    ]  # fmt: skip
    assert "External" not in {row["method"] for row in difference_rows(rows)}


@pytest.mark.parametrize("policy", ["tiny", "2"])
def test_weights_with_a_seed_of_their_own_are_paired_by_it(policy: str):
    # Drawn from the seed, or trained by the run of that seed.
    rows = pd.DataFrame([*grpo(0.9, 0.5, 0.5), untrained("again", 2, 0.75, policy)])
    assert difference_rows(rows)[0]["per_seed"] == ["seed 2: +0.250"]


def test_what_an_agent_asks_its_store_stands_in_the_table_of_all_numbers():
    rows = study(1).assign(queries=NAN, asked_needed=NAN, asked_needless=NAN)
    mine = rows["method"] == "MemPO"
    rows.loc[mine, ["queries", "asked_needed", "asked_needless"]] = [1.5, 0.75, 0.25]
    [table] = headline_tables(summary_table(rows))
    assert table["metrics"][-3:] == ["queries", "asked, needed", "asked, needless"]
    shown = {row["method"]: [mean for mean, _ in row["cells"][-3:]] for row in table["rows"]}
    assert shown == {"GRPO": ["\u2013"] * 3, "MemPO": ["1.50", "0.750", "0.250"]}


def test_all_numbers_leave_out_what_nobody_measured():
    rows = study(1).assign(p_answer=NAN, usd=0.00125)
    [table] = headline_tables(summary_table(rows))
    assert table["metrics"] == ["F1", "EM", "format", "TT", "PT", "steps", "USD / 1,000 tasks"]
    assert [row["cells"][-1] for row in table["rows"]] == [("1.250", "")] * 2
    assert [row["n"] for row in table["rows"]] == [2, 2]


def test_student_s_t_is_shown_from_three_pairs_on():
    by_seeds = {seeds: difference_rows(study(seeds))[0] for seeds in (2, 3)}
    assert by_seeds[2]["t"] == ""
    assert by_seeds[3]["t"] == "[-0.048, +0.448]"
    assert by_seeds[3]["per_seed"] == ["seed 0: +0.100", "seed 1: +0.200", "seed 2: +0.300"]


def test_the_same_seed_from_two_cold_starts_is_named_by_both():
    rows = pd.concat([study(1).assign(start="one"), study(1).assign(start="two")])
    [f1, *_] = difference_rows(rows)
    assert f1["per_seed"] == ["one seed 0: +0.100", "two seed 0: +0.100"]


def test_an_unknown_interval_has_no_brackets():
    assert interval(0.25, NAN, NAN, "{:+.2f}") == "+0.25"
    assert interval(0.25, 0.0, 0.5, "{:+.2f}") == "+0.25 [+0.00, +0.50]"


# --- the terminal


def test_the_terminal_table_line_by_line():
    table = pd.DataFrame(
        [
            task("MemPO", 0, "a", f1=1.0, em=1.0, p_answer=0.75, tt=12345, pt=900.4, steps=4),
            task("MemPO", 0, "b", f1=0.5, em=0.0, p_answer=0.25, tt=12346, pt=900.4, steps=5),
            task("GRPO", 0, "a", k=10, mode="sampled", p_answer=None, tt=100),
        ]
    )
    # Numbers stand flush right; a mean that nobody measured is a dash.
    assert terminal_table(table).splitlines() == [
        "method   K  mode        F1     EM  P(a|mem)      TT   PT  steps  n",
        "------  --  -------  -----  -----  --------  ------  ---  -----  -",
        "GRPO    10  sampled  0.500  0.000         \u2013     100  400   3.00  1",
        "MemPO    2  greedy   0.750  0.500     0.500  12,346  900   4.50  2",
    ]


def test_the_terminal_says_when_nothing_was_evaluated():
    assert terminal_table(pd.DataFrame()) == "nothing was evaluated"
