"""A run's journal: what MLflow is to hold, on disk before it is sent.

`journal.jsonl` in the run's folder has one entry a line and only grows; `journal.sent` holds
the number of its bytes that MLflow has confirmed. An entry is a dict with a `kind` and a `time`
(milliseconds since 1970); see delivery.py for the kinds. Numbers that JSON lacks are the
strings "nan", "inf" and "-inf", which float() reads back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Line(NamedTuple):
    """An entry and the number of bytes of the journal up to and with it."""

    end: int
    entry: dict[str, Any]


class Point(NamedTuple):
    """The first finite value of a metric at a step, and the number of its line."""

    line: int
    time: int  # milliseconds since 1970
    value: float


def append(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add an entry; it is on disk when this returns. Callers hold the journal's lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "journal.jsonl").open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            # A kill in the middle of a write left half a line: close it, so that it spoils
            # no other. Its writer never heard that it was kept.
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(json.dumps(_plain(entry), allow_nan=False).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def read(folder: Path) -> list[Line]:
    """All whole entries, oldest first."""
    path = folder / "journal.jsonl"
    lines: list[Line] = []
    end = 0
    for raw in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        end += len(raw)
        try:
            lines.append(Line(end, json.loads(raw)))
        except ValueError:
            continue  # half a line, see append
    return lines


def sent(folder: Path) -> int:
    """How many bytes of the journal MLflow has confirmed."""
    path = folder / "journal.sent"
    return int(path.read_text()) if path.exists() else 0


def mark_sent(folder: Path, end: int) -> None:
    """Note that MLflow has everything up to byte `end`."""
    aside = folder / "journal.sent.new"
    aside.write_text(str(end))
    aside.replace(folder / "journal.sent")


def settled(folder: Path) -> bool:
    """Whether MLflow has confirmed the whole journal."""
    path = folder / "journal.jsonl"
    return sent(folder) >= (path.stat().st_size if path.exists() else 0)


def touched(folder: Path) -> float:
    """When the journal was last written, in seconds since 1970; 0 where there is none."""
    path = folder / "journal.jsonl"
    return path.stat().st_mtime if path.exists() else 0.0


def first_points(lines: list[Line]) -> dict[tuple[str, int], Point]:
    """(metric, step) -> its first finite point.

    MLflow keeps every point ever logged and can overwrite none. A resumed run lives some
    iterations twice; the first value stands, the journal shows both.
    """
    points: dict[tuple[str, int], Point] = {}
    for number, (_, entry) in enumerate(lines):
        for key, shown in entry.get("metrics", {}).items():
            value = float(shown)
            if math.isfinite(value):
                points.setdefault((key, entry["step"]), Point(number, entry["time"], value))
    return points


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(entry)
    if "metrics" in plain:
        plain["metrics"] = {
            key: float(value) if math.isfinite(value) else str(float(value))
            for key, value in plain["metrics"].items()
        }
    return plain
