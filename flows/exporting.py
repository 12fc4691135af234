"""A model folder from a checkpoint: what transformers and vLLM load, nothing else."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path

from conf.text import ConfigError
from flows.doctor_model import check_model
from mempo.learners.checkpoint import best_of, complete, is_complete, read_state
from tasks import store

_EXPORTED = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt")


def find_checkpoint(name: str) -> Path:
    """The folder that `name` means: itself, or of a run the best checkpoint, else the last.

    Raises:
        ConfigError: it is neither the folder of a whole checkpoint nor a run that has one.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if is_complete(folder):
            return _readable(folder)
        raise ConfigError(f"{folder} is no whole checkpoint; give a folder checkpoints/NNNNNN")
    try:
        found = complete(store.run_folder(name) / "checkpoints")
    except ValueError:  # no id of a run either
        found = []
    if not found:
        raise ConfigError(
            f"'{name}' is neither a folder nor a run with a checkpoint under {store.home()}; "
            "`mempo up` shows the runs and their ids"
        )
    best = read_state(_readable(found[-1]))["experiment"]["checkpoint"]["best"]
    return _readable(best_of(found, best) or found[-1])


def _readable(folder: Path) -> Path:
    """The folder, once its parts are seen to be whole."""
    try:
        read_state(folder)
        check_model(str(folder))
    except ValueError as error:
        raise ConfigError(
            f"the checkpoint {folder} is damaged ({error}); take another one"
        ) from None
    return folder


def export(checkpoint: Path, folder: Path) -> None:
    """Copy what transformers needs of a checkpoint: the model without the optimiser's state."""
    folder = folder.expanduser().resolve()  # of a link what it points at is replaced
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(checkpoint, aside, ignore=shutil.ignore_patterns("optimizer*"))
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def check_target(folder: Path, option: str) -> None:
    """Refuse to replace what is not an export, and a place that cannot be written."""
    folder = folder.expanduser().resolve()

    def is_export() -> bool:
        files = [file.name for file in folder.rglob("*")]
        ours = all(any(fnmatch(name, kind) for kind in _EXPORTED) for name in files)
        return is_complete(folder) and ours and not any(folder.glob("optimizer*"))

    if folder.exists() and not (folder.is_dir() and (is_export() or not any(folder.iterdir()))):
        raise ConfigError(
            f"{option}: {folder} holds something that is no exported model; name another"
        )
    store.check_writable(folder.absolute().parent, option)
