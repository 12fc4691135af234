import base64
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mempo.evaluation.report import write_report
from mempo.evaluation.stats import paired_difference, summary_table

NAN = float("nan")


def task(method: str, seed: int, question: str, **fields: Any) -> dict[str, Any]:
    keys = {"mode": "greedy", "objectives": 2, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 1000, "pt": 400}
    return {"method": method, "seed": seed, **keys, **scores, "steps": 3, **fields}


def new_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table of a run that also has what older ones lack."""
    lists = {
        "step_p_answer": [0.25, None, 0.5],
        "step_mem_tokens": [4, None, 6],
        "step_context_tokens": [200, 400, 400],
    }
    remembers = (table["method"] != "ReAct").tolist()
    for name, values in lists.items():
        kept = values if name == "step_context_tokens" else [None] * 3
        column = pd.Series([values if r else kept for r in remembers], table.index)
        table = table.assign(**{name: column})
    numbers = {"usd": 0.0012, "mem_tokens": 5.0, "em_sum": 0.0}
    return table.assign(**numbers, f1_sum=2 * table["f1"], history="1", policy="")


def evaluations() -> pd.DataFrame:
    """MemPO is 0.25 better than GRPO on every task; ReAct has no memory and one seed."""
    rows = [
        task(method, seed, question, f1=base + 0.1 * seed + 0.2 * (question == "b"), tt=tokens)
        for method, base, tokens in (("GRPO", 0.2, 2000), ("MemPO", 0.45, 1500))
        for seed in (0, 1)
        for question in "ab"
    ]
    rows += [task("ReAct", 0, question, f1=0.2, p_answer=None, tt=4000) for question in "ab"]
    return pd.DataFrame(rows)


def curves() -> pd.DataFrame:
    rows = [
        {"method": method, "seed": seed, "iteration": i, "metric": metric, "value": 0.1 * i}
        for method in ("GRPO", "MemPO")
        for seed in (0, 1)
        for i in range(3)
        for metric in ("reward/mean", "loss/kl")
    ]
    return pd.DataFrame(rows)


def trajectory(**fields: Any) -> dict[str, Any]:
    step = {
        "memory": "Paris",
        "text": "<mem>Paris</mem>",
        "action": "answer",
        "query_or_answer": "Paris",
        "observation": "",
        "prompt_tokens": 3,
        "output_tokens": 4,
    }
    scores = {"status": "answered", "reward": 1.0, "f1": 1.0, "em": 1.0, "advantage": None}
    asked = {"method": "MemPO", "seed": 0, "question": "Where?", "gold": "Paris"}
    return {**asked, "answer": "Paris", **scores, "steps": [step], **fields}


def report(folder: Path, **given: Any) -> str:
    nothing: dict[str, Any] = {
        "title": "A study",
        "evaluations": pd.DataFrame(),
        "curves": pd.DataFrame(),
        "trajectories": [],
        "notes": [],
        "facts": {},
    }
    path = write_report(folder, **(nothing | given))
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A report of everything: its folder and its page."""
    folder = tmp_path_factory.mktemp("reports") / "new"
    page = report(
        folder,
        evaluations=new_columns(evaluations()),
        curves=curves(),
        trajectories=[trajectory()],
        notes=["One note."],
        facts={"model": "tiny <b>"},
    )
    return folder, page


def test_the_page_needs_no_other_file_and_no_network(whole, read_page):
    page = read_page(whole[1])
    assert not page.all("link") and not page.all("iframe")
    assert [script.get("src") for script in page.all("script")] == [None]
    sources = [img["src"] for img in page.all("img")] + [s["srcset"] for s in page.all("source")]
    assert len(sources) == 18  # nine pictures in light and dark
    assert all(source and source.startswith("data:image/png;base64,") for source in sources)
    without_pictures = re.sub(r'"data:image/png;base64,[^"]*"', "", whole[1])
    assert not re.search(r"https?://|url\(|@import|file:", without_pictures)


def test_every_picture_is_kept_with_the_numbers_behind_it(whole, read_page):
    folder, html = whole
    names = [
        "probability_buckets",  # (a), (b), (c) of the paper, then the others
        "steps_buckets",
        "score_by_objectives",
        "tokens_by_objectives",
        "score_by_tokens",
        "context_by_step",
        "p_answer_by_step",
        "learning_curves",
        "training_health",
    ]
    kept = sorted(path.name for path in (folder / "figures").iterdir())
    assert kept == sorted(f"{name}.{kind}" for name in names for kind in ("csv", "png"))
    page = read_page(html)
    for name, img in zip(names, page.all("img"), strict=True):
        inlined = base64.b64decode((img["src"] or "").partition(",")[2])
        assert inlined == (folder / "figures" / f"{name}.png").read_bytes()
        assert f"figures/{name}.csv" in page.text
    pictures = {s["srcset"] for s in page.all("source")} | {i["src"] for i in page.all("img")}
    assert len(pictures) == 18


@pytest.mark.parametrize("kl", [0.0, 0.02])
def test_a_kl_that_was_not_computed_gets_no_panel(tmp_path, kl):
    rows = [("loss/kl", kl), ("loss/grad_norm", 0.5)]
    curves = pd.DataFrame(
        [{"method": "GRPO", "seed": 0, "iteration": 1, "metric": m, "value": v} for m, v in rows]
    )
    write_report(
        tmp_path, title="t", evaluations=pd.DataFrame(), curves=curves, trajectories=[], notes=[],
        facts={},
    )  # fmt: skip
    drawn = pd.read_csv(tmp_path / "figures" / "training_health.csv")
    assert set(drawn["metric"]) == {m for m, v in rows if v}


def test_the_summary_is_kept_as_a_table(whole):
    found = pd.read_csv(whole[0] / "summary.csv")
    expected = summary_table(new_columns(evaluations()))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_the_paper_s_table_has_every_interval_and_difference(whole, read_page):
    page = read_page(whole[1])
    # GRPO: seeds 0.3 and 0.4; MemPO the same and 0.25 more, TT 1,500 instead of 2,000.
    assert {"0.350", "0.600", "2,000", "1,500"} <= set(page.texts["td"])
    assert {"Δ +0.250", "Δ -500"} <= set(page.texts["small"])  # two seeds: nothing is marked
    assert "[+0.250, +0.250]" in page.texts["small"]
    assert "2 objectives" in page.texts["th"]
    kept = pd.read_csv(whole[0] / "paper_table.csv")
    assert len(kept) == 3 * 4  # three methods at one K
    [row] = kept.query("method == 'MemPO' and metric == 'f1'").to_dict("records")
    assert (row["mean"], row["difference"], row["pairs"]) == pytest.approx((0.6, 0.25, 4))


def test_the_table_of_all_numbers_has_format_steps_money_and_sums(whole, read_page):
    page = read_page(whole[1])
    for name in ("format", "steps", "memory tokens", "USD / 1,000 tasks", "F1 sum", "EM sum"):
        assert name in page.texts["th"]
    assert "1.200" in page.texts["td"]  # 0.0012 dollars a task


def test_a_method_has_one_colour_on_the_whole_page(whole, read_page):
    page = read_page(whole[1])
    dots = {a["style"] for a in page.all("i", **{"class": "dot"})}
    assert dots == {"color: #009E73", "color: #0072B2", "color: #D55E00"}
    [card] = page.all("details", **{"class": "trajectory"})
    assert "--method: #D55E00" in (card["style"] or "")


def test_a_run_without_the_newer_columns_still_has_a_report(tmp_path, read_page):
    page = read_page(report(tmp_path, evaluations=evaluations()))
    assert "0.600" in page.texts["td"] and "format" in page.texts["th"]
    assert not {"USD / 1,000 tasks", "F1 sum"} & set(page.texts["th"])
    kept = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "score_by_tokens.png" in kept and "context_by_step.png" not in kept


def test_runs_with_and_without_the_newer_columns_can_be_compared(tmp_path, read_page):
    old = evaluations().query("method == 'GRPO'")
    new = new_columns(evaluations().query("method == 'MemPO'"))
    page = read_page(report(tmp_path, evaluations=pd.concat([old, new], ignore_index=True)))
    assert "USD / 1,000 tasks" in page.texts["th"]
    assert "nan" not in page.text.lower()
    steps = pd.read_csv(tmp_path / "figures" / "context_by_step.csv")
    assert set(steps["method"]) == {"MemPO"}


def test_a_policy_with_several_histories_has_figure_d(tmp_path, read_page):
    kept = [
        new_columns(evaluations().query("method == 'MemPO'")).assign(
            method=f"MemPO, history {history}", history=history, policy="weights"
        )
        for history in ("1", "all")
    ]
    page = read_page(report(tmp_path, evaluations=pd.concat(kept, ignore_index=True)))
    assert any("(d)" in text for text in page.texts["figcaption"])
    assert (tmp_path / "figures" / "score_by_history.csv").is_file()


def test_the_headline_table_shows_means_deviations_and_differences(whole, read_page):
    cells = read_page(whole[1]).texts
    # MemPO: seeds 0.55 and 0.65, sample standard deviation 0.1 / sqrt(2).
    assert "0.600" in cells["td"]
    assert "± 0.071" in cells["small"]
    assert "1,500" in cells["td"]
    # Better by the same 0.25 everywhere; two pairs of runs are too few to mark it.
    assert {"+0.250 [+0.250, +0.250]", "-500 [-500, -500]"} <= set(cells["td"])
    assert "seed 0: +0.250, seed 1: +0.250" in cells["td"]
    assert "Greedy decoding" in cells["h3"]


def test_from_three_seeds_on_a_difference_that_leaves_out_0_is_bold(tmp_path, read_page):
    third = evaluations().query("seed == 0 and method != 'ReAct'").assign(seed=2)
    cells = read_page(report(tmp_path, evaluations=pd.concat([evaluations(), third]))).texts
    assert {"Δ +0.250", "Δ -500", "+0.250 [+0.250, +0.250]"} <= set(cells["b"])
    assert "t [+0.250, +0.250]" in cells["small"]


def test_differences_are_those_of_the_pairs(whole, read_page):
    table = evaluations()
    react, grpo = (table.query("method == @name") for name in ("ReAct", "GRPO"))
    # ReAct has seed 0 only: 0.2 - 0.2 and 0.2 - 0.4.
    found = paired_difference(react, grpo, key=("ReAct", "greedy", "None"))
    assert found.mean == pytest.approx(-0.1)
    written = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    texts = read_page(whole[1]).texts
    assert written in texts["td"] and written not in texts["b"]


def test_what_others_wrote_is_escaped(tmp_path, read_page):
    attack = "<script>alert(1)</script>"
    html = report(
        tmp_path,
        title=attack,
        evaluations=evaluations().assign(method=lambda t: t["method"].replace("MemPO", attack)),
        trajectories=[trajectory(answer=attack, method=attack)],
        notes=[attack],
        facts={attack: attack},
    )
    assert "<script>alert" not in html
    page = read_page(html)
    assert len(page.all("script")) == 1
    for element in ("title", "h1", "td", "li", "dt", "dd"):
        assert attack in page.texts[element]


def test_modes_have_a_table_each_greedy_first(tmp_path, read_page):
    table = evaluations()
    both = pd.concat([table.assign(mode="sampled", f1=table["f1"] - 0.1), table])
    page = read_page(report(tmp_path, evaluations=both))
    assert page.texts["h3"] == ["Greedy decoding", "Sampled at temperature 1"]
    folded = [text for text in page.texts["summary"] if text.endswith("all numbers")]
    assert [text.partition(":")[0] for text in folded] == page.texts["h3"]
    # Pictures are of the first mode.
    assert all("Greedy decoding." in (img["alt"] or "") for img in page.all("img"))


def test_without_the_baseline_nothing_is_compared(tmp_path, read_page):
    table = evaluations().query("method == 'MemPO'")
    page = read_page(report(tmp_path, evaluations=table))
    assert "Δ" not in page.text
    assert "Paired differences" not in page.text
    assert "0.600" in page.text


def test_agents_without_a_memory_have_a_dash_and_no_buckets(tmp_path, read_page):
    table = evaluations().query("method != 'GRPO'")
    page = read_page(report(tmp_path / "both", evaluations=table))
    assert "\u2013" in page.texts["td"]
    page = read_page(report(tmp_path, evaluations=table.query("method == 'ReAct'")))
    assert "P(answer | memory)" not in page.texts["th"]
    assert "nan" not in page.text.lower()
    assert not (tmp_path / "figures" / "probability_buckets.png").exists()
    assert (tmp_path / "figures" / "steps_buckets.png").exists()


def test_a_report_of_nothing_is_a_page_with_a_title(tmp_path, read_page):
    page = read_page(report(tmp_path, notes=["Nothing yet."], facts={"seed": "3"}))
    assert page.texts["h1"] == ["A study"]
    assert page.texts["h2"] == ["Notes", "Facts"]
    assert "Nothing yet." in page.text and "3" in page.texts["dd"]
    assert not page.all("img")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"]


def test_curves_alone_are_drawn(tmp_path, read_page):
    only_reward = curves().query("metric == 'reward/mean'")
    page = read_page(report(tmp_path, curves=only_reward))
    assert page.texts["h2"] == ["Pictures"]
    assert len(page.all("img")) == 1
    assert not page.all("table")


def test_a_report_can_be_written_again(tmp_path):
    first = report(tmp_path, curves=curves(), trajectories=[trajectory()])
    assert report(tmp_path, curves=curves(), trajectories=[trajectory()]) == first


def test_fault_51_tables_without_a_column_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"evaluations lacks the columns \['f1'\]"):
        report(tmp_path, evaluations=evaluations().drop(columns="f1"))
    with pytest.raises(ValueError, match=r"curves lacks the columns \['metric'\]"):
        report(tmp_path, curves=curves().drop(columns="metric"))
