"""Checkpoints that are whole or not there: written aside, synced, renamed, marked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKER = "checkpoint.json"


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
        _delete(folder)
    aside.rename(folder)
    _sync(folder.parent)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether `folder` is a finished checkpoint."""
    return not folder.name.endswith(".partial") and (folder / MARKER).is_file()


def prune(parent: Path, keep: int) -> list[Path]:
    """Delete all but the last `keep` complete checkpoints under `parent`; those deleted."""
    complete = sorted(f for f in parent.iterdir() if f.is_dir() and is_complete(f))
    old = complete[:-keep]
    for folder in old:
        _delete(folder)
    return old


def _delete(folder: Path) -> None:
    """The marker goes first, so that what a kill leaves behind does not count as complete."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
