import base64
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mempo.evaluation.report import difference_lines, terminal_table, write_report
from mempo.evaluation.stats import paired_difference, summary_table

NAN = float("nan")


def task(method: str, seed: int, question: str, **fields: Any) -> dict[str, Any]:
    keys = {"mode": "greedy", "objectives": 2, "question_id": question}
    scores = {"f1": 0.5, "em": 0.0, "format": 1.0, "p_answer": 0.5, "tt": 1000, "pt": 400}
    return {"method": method, "seed": seed, **keys, **scores, "steps": 3, **fields}


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
        evaluations=evaluations(),
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
    assert len(sources) == 12  # six pictures in light and dark
    assert all(source and source.startswith("data:image/png;base64,") for source in sources)
    without_pictures = re.sub(r'"data:image/png;base64,[^"]*"', "", whole[1])
    assert not re.search(r"https?://|url\(|@import|file:", without_pictures)


def test_every_picture_is_kept_with_the_numbers_behind_it(whole, read_page):
    folder, html = whole
    names = [
        "score_by_objectives",
        "tokens_by_objectives",
        "probability_buckets",
        "steps_buckets",
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
    assert (
        len({s["srcset"] for s in page.all("source")} | {i["src"] for i in page.all("img")}) == 12
    )


def test_the_summary_is_kept_as_a_table(whole):
    found = pd.read_csv(whole[0] / "summary.csv")
    pd.testing.assert_frame_equal(found, summary_table(evaluations()), check_dtype=False)


def test_the_headline_table_shows_means_deviations_and_differences(whole, read_page):
    cells = read_page(whole[1]).texts
    # MemPO: seeds 0.55 and 0.65, sample standard deviation 0.1 / sqrt(2).
    assert "0.600" in cells["td"]
    assert "± 0.071" in cells["small"]
    assert "1,500" in cells["td"]
    # Better by the same 0.25 everywhere: the interval leaves out 0 and is bold.
    assert "+0.250 [+0.250, +0.250]" in cells["b"]
    assert "-500 [-500, -500]" in cells["b"]
    assert "seed 0: +0.250, seed 1: +0.250" in cells["td"]
    assert "Greedy decoding" in cells["h3"]


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
    # Pictures are of the first mode.
    assert all("Greedy decoding." in (img["alt"] or "") for img in page.all("img"))


def test_without_the_baseline_nothing_is_compared(tmp_path, read_page):
    table = evaluations().query("method == 'MemPO'")
    page = read_page(report(tmp_path, evaluations=table))
    assert "Δ" not in page.text
    assert "Paired differences" not in page.text
    assert "0.600" in page.text


def test_agents_without_a_memory_have_a_dash_and_no_buckets(tmp_path, read_page):
    table = evaluations().query("method == 'ReAct'")
    page = read_page(report(tmp_path, evaluations=table))
    assert "\u2013" in page.texts["td"]
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


# --- the terminal


def test_the_terminal_table_line_by_line():
    table = pd.DataFrame(
        [
            task("MemPO", 0, "a", f1=1.0, em=1.0, p_answer=0.75, tt=12345, pt=900.4, steps=4),
            task("MemPO", 0, "b", f1=0.5, em=0.0, p_answer=0.25, tt=12346, pt=900.4, steps=5),
            task("GRPO", 0, "a", objectives=10, mode="sampled", p_answer=None, tt=100),
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


def test_differences_are_told_for_methods_with_all_of_the_baselines_seeds() -> None:
    (line,) = difference_lines(evaluations())
    assert line.startswith("MemPO - GRPO, K = 2, greedy: EM +0.000 [+0.000, +0.000]")
    assert "F1 +0.250 [+0.250, +0.250] (by seed: +0.250 +0.250)" in line
    assert "Total tokens -500 [-500, -500] (by seed: -500 -500)" in line


def test_without_a_baseline_there_are_no_differences() -> None:
    rows = evaluations()
    assert difference_lines(rows[rows["method"] != "GRPO"]) == []
    assert difference_lines(pd.DataFrame()) == []
