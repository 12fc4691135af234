"""Results as Markdown, written between markers, so that no number in a README is typed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mempo.evaluation.stats import summary_table


def results_markdown(evaluations: pd.DataFrame, differences: list[str], *, source: str) -> str:
    """The table method x objectives x mode, the paired differences, and where they come from."""
    head = [
        "method",
        "K",
        "mode",
        "F1",
        "EM",
        "P(answer given memory)",
        "format",
        "TT",
        "PT",
        "steps",
        "seeds x tasks",
    ]
    rows = [head, ["---"] * len(head)]
    for r in summary_table(evaluations).to_dict("records"):
        count = int(r["seeds"])
        rows.append(
            [
                str(r["method"]),
                str(r["objectives"]),
                str(r["mode"]),
                *(_number(r[m], ".3f") for m in ("f1", "em", "p_answer", "format")),
                *(_number(r[m], ",.0f") for m in ("tt", "pt")),
                _number(r["steps"], ".2f"),
                f"{count} x {int(r['n']) // count}",
            ]
        )
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    listed = "\n".join(f"- {line}" for line in differences)
    return f"{table}\n\n{listed}\n\n{source}".replace("\n\n\n\n", "\n\n")


def replace_section(path: Path, section: str, body: str) -> None:
    """Put `body` between `<!-- results:SECTION -->` and `<!-- end:SECTION -->` of a file.

    Raises ValueError where the file has no such markers.
    """
    check_section(path, section)
    text, (start, end) = path.read_text(), _markers(section)
    before, rest = text.split(start, 1)
    _, after = rest.split(end, 1)
    path.write_text(f"{before}{start}\n{body}\n{end}{after}")


def check_section(path: Path, section: str) -> None:
    """ValueError where there is no such file, or it lacks the markers of the section."""
    start, end = _markers(section)
    if not path.is_file():
        raise ValueError(f"--into: there is no file {path}; give FILE#SECTION")
    text = path.read_text()
    if start not in text or end not in text:
        raise ValueError(f"--into: {path} has no lines {start} and {end}; add them")


def _markers(section: str) -> tuple[str, str]:
    return f"<!-- results:{section} -->", f"<!-- end:{section} -->"


def _number(value: float, form: str) -> str:
    return "" if pd.isna(value) else format(value, form)
