from pathlib import Path

import pandas as pd
import pytest

from mempo.evaluation.markdown import replace_section, results_markdown


def test_a_section_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("a\n<!-- results:x -->\nold\n<!-- end:x -->\nb\n")
    replace_section(file, "x", "new")
    assert file.read_text() == "a\n<!-- results:x -->\nnew\n<!-- end:x -->\nb\n"
    replace_section(file, "x", "newer")
    assert file.read_text() == "a\n<!-- results:x -->\nnewer\n<!-- end:x -->\nb\n"


def test_a_file_without_the_markers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("nothing here")
    with pytest.raises(ValueError, match="results:x"):
        replace_section(file, "x", "new")


def test_the_table_has_a_line_per_method_objectives_and_mode() -> None:
    row = {
        "method": "GRPO", "mode": "greedy", "objectives": 2, "f1": 0.5, "em": 0.25, "format": 1.0,
        "p_answer": None, "tt": 1200, "pt": 400, "steps": 3,
    }  # fmt: skip
    rows = [{**row, "seed": seed, "question_id": q} for seed in (1, 2) for q in "abc"]
    lines = results_markdown(pd.DataFrame(rows), ["x gains"], source="from here").splitlines()
    assert (
        lines[2] == "| GRPO | 2 | greedy | 0.500 | 0.250 |  | 1.000 | 1,200 | 400 | 3.00 | 2 x 3 |"
    )
    assert lines[3:] == ["", "- x gains", "", "from here"]
