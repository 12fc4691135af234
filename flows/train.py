"""The `train` flow: rollout -> score -> train -> (evaluate) -> (checkpoint) -> log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

from prefect import flow

from flows.evaluation import evaluate_policy
from flows.progress import say, warn_cut_off
from flows.recording import Record, RunResult, method_name, recorded
from flows.report import log_report
from flows.resuming import Begun, last_checkpoint
from mempo.config import Experiment
from mempo.evaluation.metrics import usd
from mempo.learners.checkpoint import add_metrics, delete, superseded
from tasks import placement, stages, store
from tasks.services import pick_threads

STAGE_TIMES = tuple(f"time/{stage}_s" for stage in ("rollout", "score", "train", "checkpoint"))
WEIGHTS = "weights.safetensors"  # on their way from the learner to the sampler


@flow(name="train", task_runner=stages.ray_runner(), persist_result=False)
def train(
    experiment: Experiment,
    name: str = "",
    parent: str = "",
    method: str = "",
    tags: dict[str, str] | None = None,
    resume: str = "",
) -> RunResult:
    """Train a policy from `policy.model` for `iterations`, and evaluate it.

    Args:
        experiment: the whole configuration.
        name: of the MLflow run; made from preset, algorithm and seed by default.
        parent: id of the MLflow run that this one is a child of.
        method: how tables and pictures call it.
        tags: further tags of its MLflow run.
        resume: id of the MLflow run that goes on from its last checkpoint, on the threads that it
            had; `experiment` is its configuration.
    """
    label = name or method or method_name(experiment)
    threads = pick_threads(experiment.cluster)
    begun = last_checkpoint(resume) if resume else None
    if begun:
        threads = begun.state["threads"]  # their number decides the last bits of sums
    with (
        recorded(
            experiment, "train", name=name, parent=parent, method=method, tags=tags, resume=resume
        ) as record,
        placement.rl_models(experiment, threads) as (sampler, learner),
    ):
        if resume:
            _go_on(experiment, record, sampler, learner, begun, label)
        result = _train(experiment, record, sampler, learner, label, begun, threads)
        if parent:  # the study's page shows it
            return result
        page, table = log_report(record.tracker, record.run_id, record.folder / "report")
        return replace(result, report=page, table=table)


def _train(
    experiment: Experiment,
    record: Record,
    sampler: Any,
    learner: Any,
    label: str,
    begun: Begun | None,
    threads: int,
) -> RunResult:
    last, first = experiment.iterations, begun.iteration if begun else 0
    checkpoint = begun.folder if begun else None
    if experiment.evaluate.before and last > 0 and not first:
        evaluate_policy(experiment, record, sampler, learner, 0, f"{label}, before")
    for done in range(first + 1, last + 1):
        metrics = _iterate(experiment, record, sampler, learner, done)
        measured: dict[str, float] = {}
        if experiment.evaluate.every and done % experiment.evaluate.every == 0 and done < last:
            measured = evaluate_policy(experiment, record, sampler, learner, done, label)
        if done % experiment.checkpoint.every == 0 or done == last:
            with _timed(metrics, "checkpoint"):
                # Its metrics are not logged yet: a kill before they are must not lose them.
                state = {"threads": threads, "metrics": metrics, "measured": measured}
                checkpoint = _checkpoint(experiment, record, learner, done, state)
        metrics = _with_total_time(metrics)
        record.log(metrics, done)
        say(_line(metrics, done, last), label)
    measured = evaluate_policy(experiment, record, sampler, learner, last, label)
    if checkpoint:
        add_metrics(checkpoint, measured)
        _tidy(experiment, record)
    if last:
        _show_last_rollouts(experiment, record, sampler)
    (record.folder / WEIGHTS).unlink(missing_ok=True)
    return RunResult(record.run_id, str(record.folder), str(checkpoint or ""), measured)


def _go_on(
    experiment: Experiment,
    record: Record,
    sampler: Any,
    learner: Any,
    begun: Begun | None,
    label: str,
) -> None:
    """Bring the models, and what is logged, to where the run was cut off."""
    if begun is None:
        say("no checkpoint was complete yet, so it begins again", label)
        return
    done, weights = begun.iteration, record.folder / WEIGHTS
    say(f"going on after iteration {done} of {experiment.iterations}", label)
    given = (experiment.cluster, sampler, learner, begun.folder, weights, done)
    stages.run(stages.restore, *given)
    record.log(_with_total_time(begun.state["metrics"]), done)
    _note(record, begun.folder, done, begun.state)


def _iterate(
    experiment: Experiment, record: Record, sampler: Any, learner: Any, number: int
) -> dict[str, float]:
    """Iteration `number`, from 1: its files and metrics carry it; draws count from 0."""
    cluster, index = experiment.cluster, number - 1
    path = store.iteration_folder(record.run_id, number) / "rollouts.parquet"
    weights = record.folder / WEIGHTS
    metrics: dict[str, float] = {}
    with _timed(metrics, "rollout"):
        metrics |= stages.run(stages.rollout, cluster, sampler, path, index)
    with _timed(metrics, "score"):
        metrics |= stages.run(stages.score, cluster, learner, path, index)
    with _timed(metrics, "train"):
        metrics |= stages.run(stages.train, cluster, sampler, learner, path, weights, index)
    metrics["cost/usd"] = usd(metrics, experiment.price)
    warn_cut_off(metrics["rollout/truncated_frac"], "rollouts")
    if metrics.get("loss/pairs") == 0:
        say(
            "warning: nothing was trained, for DPO found no pair: the better one has to get every "
            "objective exactly right in good form, whatever the reward is; ask fewer objectives "
            "(environment.objectives), raise rollout.group_size or set rollout.resample"
        )
    return metrics


def _checkpoint(
    experiment: Experiment, record: Record, learner: Any, done: int, state: dict[str, Any]
) -> Path:
    """Write a checkpoint, and delete those that it supersedes."""
    folder = store.checkpoint_folder(record.run_id, done)
    state |= {"iteration": done, "run_id": record.run_id, "experiment": experiment.model_dump()}
    stages.run(stages.checkpoint, experiment.cluster, learner, folder, state)
    _note(record, folder, done, state)
    _tidy(experiment, record)
    return folder


def _note(record: Record, folder: Path, done: int, state: dict[str, Any]) -> None:
    """Record a checkpoint in MLflow, and its evaluation beside it."""
    add_metrics(folder, state["measured"])
    metrics = {"reward/mean": state["metrics"]["reward/mean"]}
    record.tracker.log_checkpoint(record.run_id, folder, step=done, metrics=metrics)


def _tidy(experiment: Experiment, record: Record) -> None:
    """Delete the checkpoints that `checkpoint.keep` and `best` do not keep."""
    settings, parent = experiment.checkpoint, store.checkpoint_folder(record.run_id, 0).parent
    for old in superseded(parent, settings.keep, settings.best):
        record.tracker.drop_checkpoint(record.run_id, int(old.name))
        delete(old)


def _show_last_rollouts(experiment: Experiment, record: Record, sampler: Any) -> None:
    """One group of the last iteration, with its advantages, for the trajectory page."""
    folder = store.iteration_folder(record.run_id, experiment.iterations)
    reference = sampler.describe.remote(folder / "rollouts.parquet", experiment.rollout.group_size)
    shown = placement.wait(reference, experiment.cluster, "describe")
    record.tracker.log_text(record.run_id, json.dumps(shown), "training/trajectories.json")


@contextmanager
def _timed(metrics: dict[str, float], stage: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    metrics[f"time/{stage}_s"] = time.monotonic() - start


def _with_total_time(metrics: dict[str, float]) -> dict[str, float]:
    total = sum(v for k, v in metrics.items() if k in STAGE_TIMES)
    return {**metrics, "time/iteration_s": total}


def _line(m: dict[str, float], done: int, last: int) -> str:
    p = m["memory/p_answer"]  # NaN: no memory, or not scored in this iteration
    memory = "" if isnan(p) else f"P(answer|memory) {p:.3f}  "
    return (
        f"iteration {done}/{last}  reward {m['reward/mean']:.3f}  EM {m['reward/em']:.3f}  "
        f"format {m['reward/format']:.2f}  {memory}{m['time/iteration_s']:.1f} s"
    )
