"""What `mempo export` copies, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conf.text import ConfigError
from flows.exporting import check_target, export, find_checkpoint
from mempo.learners import checkpoint
from tasks import store


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run with three checkpoints, of which the second is the best."""
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "home"))
    for n, em in ((1, 0.1), (2, 0.9), (3, 0.5)):
        write(store.checkpoint_folder("run", n), "eval/n4/em", em)
    return "run"


def write(folder: Path, best: str, em: float) -> Path:
    def fill(into: Path) -> None:
        save_file({"w": np.zeros(2)}, into / "model.safetensors")
        for name in ("config.json", "tokenizer.json", "optimizer.state"):
            (into / name).write_text("{}")

    checkpoint.write(folder, fill, {"experiment": {"checkpoint": {"best": best}}})
    checkpoint.add_metrics(folder, {"eval/n4/em": em})
    return folder


def test_a_run_means_its_best_checkpoint_else_its_last(run: str, tmp_path: Path) -> None:
    assert find_checkpoint(run).name == "000002"
    last = write(store.checkpoint_folder(run, 4), "", 0.2)
    assert find_checkpoint(run) == last
    assert find_checkpoint(str(store.checkpoint_folder(run, 1))).name == "000001"


def test_what_is_no_checkpoint_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'lost' is neither a folder nor a run with a checkpoint"):
        find_checkpoint("lost")
    with pytest.raises(ConfigError, match="is no whole checkpoint; give a folder"):
        find_checkpoint(str(tmp_path))


def test_the_copy_has_no_optimiser_state_and_replaces_only_an_export(
    run: str, tmp_path: Path
) -> None:
    target = tmp_path / "models" / "mine"
    for _ in range(2):  # the second time over the first
        check_target(target, "FOLDER")
        export(find_checkpoint(run), target)
        names = sorted(f.name for f in target.iterdir())
        assert names == [*("checkpoint.json", "config.json", "model.safetensors", "tokenizer.json")]
    live = store.checkpoint_folder(run, 1)
    with pytest.raises(ConfigError, match="holds something that is no exported model"):
        check_target(live, "FOLDER")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"FOLDER: .*work holds something that is no exported"):
        check_target(tmp_path / "work", "FOLDER")
    (target / "notes.txt").touch()  # put there by somebody since
    with pytest.raises(ConfigError, match=r"mine holds something that is no exported"):
        check_target(target, "FOLDER")


def test_of_a_link_what_it_points_at_is_replaced(run: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_target(tmp_path / "link", "FOLDER")
    export(find_checkpoint(run), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "config.json").is_file()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_damaged_checkpoint_is_not_copied(run: str, name: str, damage) -> None:
    folder = store.checkpoint_folder("run", 2)
    if name == "tokenizer.json" and damage is not Path.unlink:
        name = "checkpoint.json"  # what a tokenizer holds is not read
    damage(folder / name)
    with pytest.raises(ConfigError, match=r"the checkpoint .*000002 is damaged \("):
        find_checkpoint(str(folder))
