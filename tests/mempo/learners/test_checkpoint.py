"""A checkpoint is whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mempo.learners.checkpoint import (
    MARKER,
    add_metrics,
    complete,
    delete,
    is_complete,
    read_state,
    superseded,
    write,
)


def fill(text: str) -> Callable[[Path], None]:
    def into(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)
        (folder / "optimizer").write_text(text)

    return into


def test_what_was_filled_is_there_with_the_state(tmp_path: Path) -> None:
    folder = write(tmp_path / "run" / "000003", fill("a"), {"iteration": 3, "seed": 1})
    assert folder == tmp_path / "run" / "000003" and is_complete(folder)
    assert (folder / "model" / "weights").read_text() == "a"
    assert json.loads((folder / MARKER).read_text()) == {"iteration": 3, "seed": 1}
    assert [f.name for f in folder.parent.iterdir()] == ["000003"]


def test_a_folder_without_marker_or_aside_is_not_complete(tmp_path: Path) -> None:
    assert not is_complete(tmp_path / "missing")
    (tmp_path / "000001").mkdir()
    assert not is_complete(tmp_path / "000001")
    aside = tmp_path / "000002.partial"
    aside.mkdir()
    (aside / MARKER).write_text("{}")
    assert not is_complete(aside)


def test_fault_39_a_crash_while_filling_leaves_the_old_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "000001", fill("old"), {"n": 1})

    def crash(aside: Path) -> None:
        fill("new")(aside)
        raise KeyboardInterrupt  # between the files

    for target in (folder, tmp_path / "000002"):
        with pytest.raises(KeyboardInterrupt):
            write(target, crash, {"n": 2})
    assert is_complete(folder)
    assert (folder / "optimizer").read_text() == "old"
    complete = [f.name for f in sorted(tmp_path.iterdir()) if is_complete(f)]
    assert complete == ["000001"]


def test_fault_39_a_retry_after_a_crash_starts_clean(tmp_path: Path) -> None:
    aside = tmp_path / "000001.partial"
    aside.mkdir()
    (aside / "left_over").write_text("x")
    folder = write(tmp_path / "000001", fill("new"), {})
    assert is_complete(folder)
    assert not (folder / "left_over").exists() and not aside.exists()


def test_an_older_one_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "1", lambda f: (f / "old").mkdir(), {})
    folder = write(tmp_path / "1", fill("new"), {})
    assert not (folder / "old").exists()
    assert (folder / "optimizer").read_text() == "new"


def test_what_is_superseded_is_all_but_the_last_complete_ones(tmp_path: Path) -> None:
    assert complete(tmp_path / "none") == []
    for n in (1, 2, 9, 10):
        write(tmp_path / f"{n:06d}", fill(str(n)), {})
    (tmp_path / "000011").mkdir()  # not complete: neither counted nor deleted
    (tmp_path / "note.txt").write_text("x")
    assert [f.name for f in complete(tmp_path)] == ["000001", "000002", "000009", "000010"]
    assert [f.name for f in superseded(tmp_path, 2)] == ["000001", "000002"]
    for old in superseded(tmp_path, 2):
        delete(old)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "000009", "000010", "000011", "note.txt"
    ]  # fmt: skip
    assert superseded(tmp_path, 2) == []


def test_the_best_is_kept_beside_the_last(tmp_path: Path) -> None:
    values = {1: 0.5, 2: 0.9, 3: 0.9, 4: float("nan"), 5: 0.1, 6: None}
    for n, value in values.items():
        folder = write(tmp_path / f"{n:06d}", fill(str(n)), {})
        add_metrics(folder, {"eval/n2/em": 0.0} if value is None else {"eval/n4/em": value})

    def gone(keep: int) -> list[int]:
        return [int(f.name) for f in superseded(tmp_path, keep, "eval/n4/em")]

    assert gone(1) == [1, 2, 4, 5]  # of equals the latest
    assert gone(4) == [1, 2]
    assert [int(f.name) for f in superseded(tmp_path, 1, "eval/n2/em")] == [1, 2, 3, 4, 5]
    assert [int(f.name) for f in superseded(tmp_path, 1, "eval/n9/em")] == [1, 2, 3, 4, 5]
    add_metrics(tmp_path / "000006", {"eval/n4/em": 1.0})
    assert gone(1) == [1, 2, 3, 4, 5]
    assert read_state(tmp_path / "000006") == {}  # its own files have a digest


@pytest.mark.parametrize("action", ["delete", "replace"])
def test_fault_39_a_kill_while_deleting_leaves_nothing_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    old = write(tmp_path / "000001", fill("old"), {})
    write(tmp_path / "000002", fill("new"), {})
    real = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if Path(path).name.endswith(".partial") and not (Path(path) / MARKER).exists():
            return real(path, ignore_errors=ignore_errors)
        (Path(path) / "optimizer").unlink()  # the first file of several
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        if action == "delete":
            delete(old)
        else:
            write(old, fill("newer"), {})
    assert not (is_complete(old) and not (old / "optimizer").exists())
    assert is_complete(tmp_path / "000002")
