"""Whole trajectories as an HTML fragment: what was remembered, dropped, done and credited.

A trajectory is a plain dict: `method, seed, question, gold, answer, status, reward, f1, em,
advantage` and `steps`, each step a dict of `memory, text, action, query_or_answer, observation,
p_answer_mem, p_answer_full, adv_mem, prompt_tokens, output_tokens`. Numbers that nobody measured
are None or NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mempo.evaluation.canvas import Style, palette
from mempo.evaluation.stats import ordered

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_WORD = re.compile(r"\S+\s*")
_EXTREME = 0.25  # share of a method's trajectories that count as its best, and as its worst
_FULL_TINT = 2.0  # an advantage of this size has the strongest tint
_BLUE, _ORANGE = "0,114,178", "213,94,0"  # told apart by every reader, unlike green and red

# The picture of P(answer | memory): a box of this size, drawn with this margin, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 132, 40, 5


@dataclass(frozen=True)
class Words:
    """A run of words of a memory, against the memory before it."""

    change: Literal["kept", "new", "dropped"]
    text: str


def trajectories_html(
    trajectories: Sequence[Mapping[str, Any]], styles: Mapping[str, Style] | None = None
) -> str:
    """An HTML fragment with one collapsible block per trajectory, style and script included.

    Everything in it is text of a model or a tool and is escaped. Filters work without a server:
    by method, and all / best / worst / those whose two advantages disagree (A^T and the mean of
    A^M over the steps have opposite signs). Best and worst are the upper and lower quarter of
    each method by reward, then F1, then the last P(answer | memory). No trajectories give a
    fragment that says so. A^M tints the memory that it is of, A^T what else the step wrote.
    `styles` are the colours of the methods, where a page around the fragment has some already.
    """
    methods = ordered(str(t["method"]) for t in trajectories)
    styles = styles or palette(methods)
    groups = [["disagree"] if disagree(t) else [] for t in trajectories]
    for method in methods:
        mine = [i for i, t in enumerate(trajectories) if t["method"] == method]
        mine.sort(key=lambda i: _merit(trajectories[i]))
        few = max(1, int(len(mine) * _EXTREME))
        for i in mine[:few]:
            groups[i].append("worst")
        for i in mine[-few:]:
            groups[i].append("best")
    cards = [
        _card(trajectory, group, styles[str(trajectory["method"])].colour)
        for trajectory, group in zip(trajectories, groups, strict=True)
    ]
    return (
        templates()
        .get_template("viewer.html.j2")
        .render(
            cards=cards,
            methods=methods,
            tinted=any(card["badge"] for card in cards),
            plus=_tint(_FULL_TINT),
            minus=_tint(-_FULL_TINT),
        )
    )


@cache
def templates() -> Environment:
    """The package's templates, with escaping always on and unknown names an error."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def disagree(trajectory: Mapping[str, Any]) -> bool:
    """Whether A^T and the mean of A^M over the steps have opposite signs."""
    whole = finite(trajectory.get("advantage"))
    parts = [finite(step.get("adv_mem")) for step in trajectory["steps"]]
    known = [part for part in parts if part is not None]
    return whole is not None and bool(known) and whole * sum(known) < 0


def word_changes(before: str | None, after: str) -> list[Words]:
    """`after` in runs of kept and new words, with the dropped words of `before` in their places.

    Words are compared without the white space and punctuation around them. Without an earlier
    memory all words are kept ones: there is nothing they could be new against.
    """
    if before is None:
        return [Words("kept", after)]
    old, new = _WORD.findall(before), _WORD.findall(after)
    matcher = SequenceMatcher(None, _bare(old), _bare(new), autojunk=False)
    runs: list[Words] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind in ("delete", "replace"):
            runs.append(Words("dropped", "".join(old[i:j])))
        if kind in ("insert", "replace"):
            runs.append(Words("new", "".join(new[k:m])))
        if kind == "equal":
            runs.append(Words("kept", "".join(new[k:m])))
    return runs


def _bare(words: Sequence[str]) -> list[str]:
    return [word.strip().strip(".,;:") or word.strip() for word in words]


def finite(value: object) -> float | None:
    """`value` as a float, None where it is missing, NaN or infinite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _merit(trajectory: Mapping[str, Any]) -> tuple[float, float, float]:
    probabilities = [finite(step.get("p_answer_mem")) for step in trajectory["steps"]]
    known = [p for p in probabilities if p is not None]
    return (
        finite(trajectory["reward"]) or 0.0,
        finite(trajectory["f1"]) or 0.0,
        known[-1] if known else 0.0,
    )


def _card(trajectory: Mapping[str, Any], groups: list[str], colour: str) -> dict[str, Any]:
    """What the template shows of one trajectory."""
    keeps_memory = any(step["memory"] is not None for step in trajectory["steps"])
    steps: list[dict[str, Any]] = []
    before: str | None = None
    for step in trajectory["steps"]:
        memory = step["memory"]
        think = _THINK.search(step["text"])
        steps.append(
            {
                **step,
                "changes": None if memory is None else word_changes(before, memory),
                "lost_memory": keeps_memory and memory is None,
                "think": think.group(1).strip() if think else "",
                "p_mem": finite(step.get("p_answer_mem")),
                "p_full": finite(step.get("p_answer_full")),
                "badge": _badge("A\u1d39", finite(step.get("adv_mem"))),
                "tint": _tint(finite(step.get("adv_mem"))),
            }
        )
        before = before if memory is None else memory
    return {
        **trajectory,
        "groups": " ".join(groups),
        "colour": colour,
        "badge": _badge("A\u1d40", finite(trajectory.get("advantage"))),
        "tint": _tint(finite(trajectory.get("advantage"))),
        "steps": steps,
        "verdict": verdict(trajectory),
        "disagree": "disagree" in groups,
        "line": _line([step["p_mem"] for step in steps]),
        "full_line": _line([step["p_full"] for step in steps]),
    }


def _badge(name: str, value: float | None) -> dict[str, str] | None:
    if value is None:
        return None
    return {"text": f"{name} {value:+.2f}", "tint": _tint(value)}


def _tint(value: float | None) -> str:
    """The CSS colour of an advantage, the stronger the larger; none for none."""
    if not value:
        return "transparent"
    strength = 0.08 + 0.32 * min(abs(value) / _FULL_TINT, 1.0)
    return f"rgba({_BLUE if value > 0 else _ORANGE},{strength:.2f})"


def verdict(trajectory: Mapping[str, Any]) -> str:
    """'right' where every objective is exactly so, 'partly right, F1 0.67' where a word is."""
    f1 = finite(trajectory["f1"]) or 0.0
    if (finite(trajectory["em"]) or 0.0) >= 1.0:
        return "right"
    return f"partly right, F1 {f1:.2f}" if f1 > 0 else "wrong"


def _line(probabilities: Sequence[float | None]) -> dict[str, Any]:
    """Points (x, y, label) of an SVG line over the steps and its path, broken at unknown ones."""
    span = max(len(probabilities) - 1, 1)
    points: list[tuple[float, float, str]] = []
    path, pen = "", "M"
    for i, p in enumerate(probabilities):
        if p is None:
            pen = "M"
            continue
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * i / span
        y = _MARGIN + (_HEIGHT - 2 * _MARGIN) * (1.0 - min(max(p, 0.0), 1.0))
        points.append((round(x, 1), round(y, 1), f"step {i + 1}: {p:.2f}"))
        path, pen = f"{path}{pen}{x:.1f} {y:.1f}", "L"
    return {"points": points, "path": path}
