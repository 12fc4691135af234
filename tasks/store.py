"""Where bytes live: everything a run leaves lies under MEMPO_HOME.

MEMPO_HOME/                         default ./runs
    mlflow.db  artifacts/           the tracking store, where no server is configured
    store/<run_id>/                 one folder per MLflow run
        iterations/000012/          rollouts and scores of an iteration
        checkpoints/000012/         a checkpoint after an iteration
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME_SETTING = "MEMPO_HOME"

_RUN_ID = re.compile(r"[0-9A-Za-z_-]{1,128}", re.ASCII)


def home() -> Path:
    """The absolute folder under which everything is kept: MEMPO_HOME, or ./runs."""
    return Path(os.environ.get(HOME_SETTING) or "runs").expanduser().absolute()


def run_folder(run_id: str, root: Path | None = None) -> Path:
    """The folder of one MLflow run under `root` (default: `home()`); not created here.

    Raises:
        ValueError: `run_id`, which people type, is none and could lead out of the store.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"{run_id[:80]!r} is no id of a run, which has letters, digits, _ and - alone; "
            "`mempo up` shows the runs and their ids"
        )
    return (root or home()) / "store" / run_id


def iteration_folder(run_id: str, iteration: int, root: Path | None = None) -> Path:
    """The folder of one iteration's rollouts, e.g. store/<run_id>/iterations/000012."""
    return run_folder(run_id, root) / "iterations" / f"{iteration:06d}"


def checkpoint_folder(run_id: str, iteration: int, root: Path | None = None) -> Path:
    """The folder of the checkpoint after an iteration: store/<run_id>/checkpoints/000012."""
    return run_folder(run_id, root) / "checkpoints" / f"{iteration:06d}"


def check_writable(path: Path, setting: str = HOME_SETTING) -> None:
    """Make the folder `path` and prove, with a probe file, that it can be written.

    Permission bits are not asked: they say nothing to root, on read-only mounts or on network
    file systems.

    Raises:
        ValueError: one line naming `setting` and the cure.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".probe-") as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"{setting}: cannot write to the folder {path} ({reason}); set {setting} to a folder "
            "that can be written"
        ) from error


def folder_digest(folder: Path) -> tuple[int, str]:
    """Size in bytes and sha256 of a folder's files, whatever order the disk lists them in.

    The hash runs over every file, sorted by relative name: the name, a zero byte, the size in
    8 bytes, the contents. So neither a moved boundary nor a renamed file goes unnoticed, and a
    copy at another place has the same digest.

    Raises:
        ValueError: `folder` is not a folder.
    """
    if not folder.is_dir():
        raise ValueError(f"cannot compute the digest of {folder}: it is not a folder")
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*")}
    digest = hashlib.sha256()
    total = 0
    for name in sorted(files):
        if not files[name].is_file():
            continue
        size = files[name].stat().st_size
        digest.update(name.encode() + b"\0" + size.to_bytes(8, "big"))
        with files[name].open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        total += size
    return total, digest.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against every other process and thread.

    The operating system frees it when its holder dies, so a kill leaves nobody waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
