"""A training run that was cut off: which one goes on, with which settings, and from where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.load import flatten, load, load_cluster, sha256
from conf.text import ConfigError
from mempo import own
from mempo.config import Experiment
from mempo.learners import checkpoint
from tasks import store
from tasks.connection import OUTAGE, first_line

if TYPE_CHECKING:
    from tasks.records import RunInfo
    from tasks.tracking import Tracker

AUTO = "auto"


@dataclass(frozen=True)
class Begun:
    """The last complete checkpoint of a run."""

    iteration: int
    folder: Path
    state: dict[str, Any]


def last_checkpoint(run_id: str) -> Begun | None:
    """Where the run `run_id` goes on from; None before its first checkpoint.

    Raises:
        ValueError: its checkpoint lacks what a resume needs.
    """
    found = checkpoint.complete(store.run_folder(run_id) / "checkpoints")
    if not found:
        return None
    state = checkpoint.read_state(found[-1])
    if not {"threads", "metrics", "measured"} <= state.keys():
        raise ValueError(
            f"{found[-1]} was written before runs could go on from a checkpoint; start anew"
        )
    return Begun(int(found[-1].name), found[-1], state)


def settings_of(
    run_id: str,
    *,
    cluster: str = "local",
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> Experiment:
    """The configuration that a run was started with; where it runs may change.

    cluster: a cluster file in place of the run's; 'local' is the default of the command, so the
    run's own place is kept. The engines stay those of the run.

    Raises:
        ConfigError: one line; the run left no folder here, or an override changes what it does.
    """
    file = store.run_folder(run_id) / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"--resume {run_id}: there is no {file}; give the id of a run under this MEMPO_HOME"
        )
    before = load(str(file))
    elsewhere: list[str] = []
    if cluster != "local":
        place = load_cluster(cluster)
        elsewhere = [
            f"cluster.{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in place.items()
        ]
    now = load(str(file), overrides=[*elsewhere, *overrides], seed=seed)
    if sha256(before) != sha256(now):
        was, wanted = flatten(before), flatten(now)
        setting = next(name for name in was if was[name] != wanted[name])
        raise ConfigError(
            f"--resume {run_id}: setting '{setting}' was {was[setting]!r} and is "
            f"{wanted[setting]!r} now; only sections cluster and tracking may change"
        )
    return now


def run_to_resume(tracker: Tracker, experiment: Experiment, resume: str) -> str:
    """The id of the training run that `--resume` means: that very run, or with 'auto' the newest.

    Raises:
        ValueError: one line; the run is unknown, no training, still going on, done, or made by
            other code of one's own; or 'auto' finds none with this configuration.
    """
    try:
        if resume == AUTO:
            return _newest(tracker, experiment)
        run = tracker.run_info(resume)
    except OUTAGE as error:
        raise ValueError(
            f"--resume {resume}: {first_line(error)}; `mempo up` shows the runs and their ids"
        ) from error
    if run.kind != "train":
        raise ValueError(
            f"--resume {resume}: that is a run of kind {run.kind or '?'!r}, and only training goes "
            "on; `mempo ablate STUDY --resume` is for a study"
        )
    if run.tags.get("mempo.sweep"):
        raise ValueError(
            f"--resume {resume}: that run belongs to the sweep {run.tags['mempo.sweep']}; "
            f"`mempo sweep NAME --resume {run.tags['mempo.sweep']}` goes on with it"
        )
    if run.parent:
        raise ValueError(
            f"--resume {resume}: that run belongs to the study {run.parent}; "
            f"`mempo ablate STUDY --resume {run.parent}` goes on with it"
        )
    try:
        tracker.check_idle(run)
    except ValueError as error:
        raise ValueError(f"--resume: {error}") from None
    if run.status == "FINISHED":
        raise ValueError(f"--resume {resume}: that run is done; `mempo report {resume}` shows it")
    if run.tags.get("mempo.config_sha256") != sha256(experiment):
        raise ValueError(
            f"--resume {resume}: its config.yaml is not what it was started with; put it back from "
            "the run's artifacts in MLflow, or start anew"
        )
    for setting, code in own.digests(experiment).items():
        if run.tags.get(f"mempo.own.{setting}") != code:
            raise ValueError(
                f"--resume {resume}: the file behind {setting} has changed since; put it back, or "
                "start anew without --resume"
            )
    return resume


def _newest(tracker: Tracker, experiment: Experiment) -> str:
    tags = {"mempo.kind": "train", "mempo.config_sha256": sha256(experiment)}
    tags |= {f"mempo.own.{s}": code for s, code in own.digests(experiment).items()}
    same = [run for run in tracker.find(tags) if not run.parent]
    for run in same:
        if run.status != "FINISHED" and _idle(tracker, run):
            return run.run_id
    if same and same[0].status == "RUNNING":
        raise ValueError(f"--resume auto: run {same[0].run_id} still goes on; stop that first")
    raise ValueError(
        "--resume auto: no unfinished run with these settings; start it without --resume"
    )


def _idle(tracker: Tracker, run: RunInfo) -> bool:
    try:
        tracker.check_idle(run)
    except ValueError:
        return False
    return True
