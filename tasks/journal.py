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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple


class Line(NamedTuple):
    """An entry and the number of bytes of the journal up to and with it."""

    end: int
    entry: dict[str, Any]


class Point(NamedTuple):
    """The first finite value of a metric at a step, and the end of its line."""

    end: int
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


def read(folder: Path, start: int = 0) -> list[Line]:
    """All whole entries after byte `start`, the end of one of them; oldest first."""
    return [line for _, line in _lines(folder, start)]


def at_steps(folder: Path, steps: Collection[int]) -> list[Line]:
    """The entries with metrics of these steps, oldest first.

    A process reads a growing journal once: where its lines lie is kept by step.
    """
    places = _places(folder).extended(folder)
    wanted = sorted(place for step in steps for place in places.of_step.get(step, ()))
    if not wanted:
        return []
    with (folder / "journal.jsonl").open("rb") as stream:
        lines = []
        for start, end in wanted:
            stream.seek(start)
            lines.append(Line(end, json.loads(stream.read(end - start))))
        return lines


@dataclass
class _Places:
    """Where the metrics of each step lie in a journal, up to byte `end`."""

    end: int = 0
    of_step: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def extended(self, folder: Path) -> _Places:
        for start, line in _lines(folder, self.end):
            if "metrics" in line.entry:
                self.of_step.setdefault(line.entry["step"], []).append((start, line.end))
            self.end = line.end
        return self


@lru_cache(maxsize=256)  # runs of a process
def _places(folder: Path) -> _Places:
    return _Places()


def _lines(folder: Path, start: int) -> Iterator[tuple[int, Line]]:
    path = folder / "journal.jsonl"
    if not path.exists():
        return
    with path.open("rb") as stream:
        stream.seek(start)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return  # a writer is at it, or was killed: see append
            begun, start = start, start + len(raw)
            try:
                entry = json.loads(raw)
            except ValueError:
                continue  # half a line, see append
            yield begun, Line(start, entry)


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


def first_points(lines: Sequence[Line]) -> dict[tuple[str, int], Point]:
    """(metric, step) -> its first finite point.

    MLflow keeps every point ever logged and can overwrite none. A resumed run lives some
    iterations twice; the first value stands, the journal shows both.
    """
    points: dict[tuple[str, int], Point] = {}
    for end, entry in lines:
        for key, shown in entry.get("metrics", {}).items():
            value = float(shown)
            if math.isfinite(value):
                points.setdefault((key, entry["step"]), Point(end, entry["time"], value))
    return points


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(entry)
    if "metrics" in plain:
        plain["metrics"] = {
            key: float(value) if math.isfinite(value) else str(float(value))
            for key, value in plain["metrics"].items()
        }
    return plain
