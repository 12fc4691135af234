"""Checkpoints that are whole or not there: written aside, synced, renamed, marked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

MARKER = "checkpoint.json"
MEASURED = "measured.json"  # beside the checkpoints: their evaluations by name


def write(folder: Path, fill: Callable[[Path], None], state: dict[str, Any]) -> Path:
    """Make `folder` from what `fill` writes and the JSON `state`; replaces an older one."""
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    fill(aside)
    (aside / MARKER).write_text(json.dumps(state, indent=2, sort_keys=True))
    for file in [*aside.rglob("*"), aside]:
        _sync(file)
    if folder.exists():
        old = folder.with_name(folder.name + ".old.partial")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        aside.rename(folder)
        shutil.rmtree(old)
    else:
        aside.rename(folder)
    _sync(folder.parent)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether `folder` is a finished checkpoint."""
    return not folder.name.endswith(".partial") and (folder / MARKER).is_file()


def complete(parent: Path) -> list[Path]:
    """The finished checkpoints under `parent`, oldest first."""
    if not parent.is_dir():
        return []
    return sorted(f for f in parent.iterdir() if f.is_dir() and is_complete(f))


def read_state(folder: Path) -> dict[str, Any]:
    """The state that `write` put beside the weights."""
    return json.loads((folder / MARKER).read_text())


def add_metrics(folder: Path, metrics: dict[str, float]) -> None:
    """What a checkpoint was measured to be, beside it: its own bytes stay, they have a digest."""
    known = _measured(folder.parent)
    known[folder.name] = {**known.get(folder.name, {}), **metrics}
    aside = folder.parent / f"{MEASURED}.partial"
    aside.write_text(json.dumps(known, indent=2, sort_keys=True))
    _sync(aside)
    aside.rename(folder.parent / MEASURED)
    _sync(folder.parent)


def best_of(found: Sequence[Path], metric: str) -> Path | None:
    """The checkpoint with the largest `metric` in `add_metrics`; of equals the last.

    None where none of them has a finite value of it, or `metric` is ''.
    """
    values = {f: _measured(f.parent).get(f.name, {}).get(metric) for f in found}
    ranked = [(value, f) for f, value in values.items() if value is not None and isfinite(value)]
    return max(ranked)[1] if ranked else None


def superseded(parent: Path, keep: int, best: str = "") -> list[Path]:
    """The finished checkpoints that are neither among the last `keep` nor the best by a metric."""
    found = complete(parent)
    kept = {*found[-keep:], best_of(found, best)}
    return [f for f in found if f not in kept]


def delete(folder: Path) -> None:
    """Renamed first, so that what a kill leaves behind neither counts nor stays: see `sweep`."""
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def sweep(parent: Path) -> None:
    """Delete what kills left of writing and deleting."""
    for rest in parent.glob("*.partial"):
        if rest.is_dir():
            shutil.rmtree(rest)


def _measured(parent: Path) -> dict[str, dict[str, float]]:
    file = parent / MEASURED
    return json.loads(file.read_text()) if file.is_file() else {}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
