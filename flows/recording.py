"""A run's record from start to end: MLflow run, its tags, and a status that is always closed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefect.runtime import flow_run

from conf.load import flatten, sha256, to_yaml
from conf.naming import run_name
from flows.describing import WHOLES, datasets, description
from flows.fingerprint import inputs, packages
from flows.prefect_page import describe
from mempo import own
from mempo.config import Experiment
from tasks import store, views
from tasks.connection import OUTAGE
from tasks.databases import redacted
from tasks.system_metrics import watched
from tasks.tracking import Kind, Tracker


@dataclass(frozen=True)
class Record:
    """A tracked run and its folder."""

    tracker: Tracker
    run_id: str

    @property
    def folder(self) -> Path:
        return store.run_folder(self.run_id)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.tracker.log_metrics(self.run_id, metrics, step)


@dataclass(frozen=True)
class RunResult:
    """What a flow leaves: its MLflow run, its last checkpoint (if any), its final numbers."""

    run_id: str
    folder: str
    checkpoint: str = ""
    metrics: dict[str, float] | None = None
    report: str = ""  # its page
    table: str = ""  # for the terminal
    pruned: int = 0  # the iteration after which a sweep stopped it; 0: it was not stopped


AGENT_NAMES = {  # in tables; the self-memory agent is the rule
    "self_memory": "",
    "react": "ReAct",
    "truncation": "Truncation",
    "summary": "Summary",
    "retrieval": "Retrieval",
    "external": "External",
}


def method_name(experiment: Experiment) -> str:
    """How tables and pictures call what this experiment trains or measures."""
    agent = AGENT_NAMES[experiment.agent.kind]
    if experiment.iterations == 0:
        return agent or "SFT"
    algorithm = {"mempo": "MemPO", "grpo": "GRPO", "dpo": "DPO"}[experiment.algorithm]
    return f"{agent} + {algorithm}" if agent else algorithm


@contextmanager
def recorded(
    experiment: Experiment,
    kind: Kind,
    *,
    name: str = "",
    parent: str = "",
    method: str = "",
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    resume: str = "",
) -> Iterator[Record]:
    """One MLflow run around the block: FINISHED, or FAILED or KILLED where it breaks off.

    `tags` are further tags of the run, `params` its params in place of the whole configuration;
    `resume` is the id of a run that goes on in place of a new one.
    """
    tracker = Tracker(experiment.tracking.uri, experiment.tracking.experiment)
    trains = kind == "train" and experiment.iterations > 0
    flow_run_id = {"prefect.flow_run_id": str(flow_run.get_id() or "")}
    if resume:
        tracker.resume(resume)
        tracker.set_tags(resume, {"mempo.reason": "", **flow_run_id})
    method, digests = method or method_name(experiment), inputs(experiment)
    run_id = resume or tracker.start(
        name=name or run_name(experiment, kind),
        kind=kind,
        params=flatten(experiment) if params is None else params,
        tags={
            "mempo.algorithm": experiment.algorithm if trains else "none",
            "mempo.agent": experiment.agent.kind,
            "mempo.method": method,
            "mempo.preset": experiment.preset,
            "mempo.seed": str(experiment.seed),
            "mempo.config_sha256": sha256(experiment),
            **flow_run_id,
            "mempo.inputs": json.dumps(digests),
            **{f"mempo.own.{s}": code for s, code in own.digests(experiment).items()},
            **(tags or {}),
        },
        parent=parent or None,
        datasets=datasets(experiment, kind, digests),
    )
    describe(tracker.run_info(run_id).tags, tracker, run_id)
    record = Record(tracker, run_id)
    record.folder.mkdir(parents=True, exist_ok=True)
    aside = record.folder / "config.yaml.partial"  # whole or not there: a resume reads it
    aside.write_text(to_yaml(experiment))
    aside.rename(record.folder / "config.yaml")
    tracker.log_artifact(run_id, record.folder / "config.yaml")
    if not resume:
        tracker.log_text(run_id, packages(), "packages.txt")
        page = _curves(tracker, run_id) if kind in WHOLES else ""
        text = description(experiment, kind, run_id, method=method, parent=parent, page=page)
        tracker.set_tags(run_id, {"mlflow.note.content": text})
    try:
        with watched(tracker, run_id):
            yield record
    except Exception as error:
        tracker.finish(run_id, "FAILED", redacted(f"{type(error).__name__}: {error}")[:500])
        raise
    except BaseException as stop:  # Ctrl-C, or Prefect cancels the flow: `flows.stopping`
        pressed = isinstance(stop, KeyboardInterrupt)
        tracker.finish(run_id, "KILLED", "stopped" if pressed else type(stop).__name__)
        raise
    tracker.finish(run_id, "FINISHED")


def _curves(tracker: Tracker, run_id: str) -> str:
    """Where MLflow's own pages draw the runs of a study, seen from there."""
    client, experiment_id = tracker.connect()
    try:
        key = views.share(client, experiment_id, f"tags.`mlflow.parentRunId` = '{run_id}'")
    except OUTAGE:
        return ""
    return views.compare_url("", experiment_id, key)
