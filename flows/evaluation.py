"""Measure a policy: every number of objectives, greedy and sampled, into metrics and artifacts."""

from __future__ import annotations

import json
import time
from math import isnan
from pathlib import Path
from typing import Any

from flows.prefect_page import show_evaluation
from flows.progress import say, warn_cut_off
from flows.recording import Record
from mempo.config import Experiment
from mempo.evaluation.metrics import usd
from mempo.records import read_rollouts
from tasks import placement, stages, store
from tasks.placement import Models

SHOWN = 4  # trajectories per number of objectives on the trajectory page


def evaluate_policy(
    experiment: Experiment, record: Record, models: Models, step: int, label: str
) -> dict[str, float]:
    """Evaluate and log as step `step`; returns the `eval/...` metrics.

    Artifacts: evaluation/tasks.json (a row per task) and evaluation/trajectories.json of the
    latest evaluation, which is all that a report needs; some trajectories as MLflow traces.
    """
    settings = experiment.evaluate
    start = time.monotonic()
    folder = store.iteration_folder(record.run_id, step)
    metrics: dict[str, float] = {}
    costs: dict[str, float] = {}
    tasks: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for mode in ("greedy", "sampled") if settings.sampled else ("greedy",):
        area = "eval" if mode == "greedy" else "eval_sampled"
        for k in settings.objectives:
            found, cost = stages.run(stages.evaluate, experiment, models, folder, k, mode)
            metrics |= found
            costs = {n: costs.get(n, 0.0) + v for n, v in cost.items()}
            f1, em, p = (found[f"{area}/n{k}/{name}"] for name in ("f1", "em", "p_answer"))
            every = settings.passes if mode == "sampled" else 1
            times = f" x {every} passes" if every > 1 else ""
            memory = "" if isnan(p) else f"  P(answer|memory) {p:.3f}"
            say(
                f"evaluated {settings.questions} tasks{times} of {k} objective(s), {mode}: "
                f"F1 {f1:.3f}  EM {em:.3f}{memory}",
                label,
            )
            tried = f"tasks of {k} objective(s), {mode},"
            warn_cut_off(found[f"{area}/n{k}/truncated_frac"], tried, label)
            path = folder / f"evaluate-n{k}-{mode}.parquet"
            tasks += json.loads(path.with_suffix(".json").read_text())
            if mode == "sampled" or not settings.sampled:
                reference = models.samplers[0].describe.remote(path, SHOWN, every)
                shown += placement.wait(reference, experiment.cluster, "describe")
    spent = {
        "cost/evaluate_usd": usd(costs, experiment.price),
        "time/evaluate_s": time.monotonic() - start,
    }
    record.log({**metrics, **spent}, step)
    show_evaluation(metrics, record.run_id)
    record.tracker.log_text(record.run_id, json.dumps(tasks), "evaluation/tasks.json")
    record.tracker.log_text(record.run_id, json.dumps(shown), "evaluation/trajectories.json")
    _log_traces(experiment, record, models, folder)
    return metrics


def _log_traces(experiment: Experiment, record: Record, models: Models, folder: Path) -> None:
    count = experiment.tracking.traces
    if not count:
        return
    k = experiment.evaluate.objectives[-1]
    trajectories, _ = read_rollouts(folder / f"evaluate-n{k}-greedy.parquet")

    def decode(ids: list[int]) -> str:
        return placement.wait(models.samplers[0].decode.remote(ids), experiment.cluster, "decode")

    record.tracker.log_traces(
        record.run_id, trajectories[:count], decode=decode, price=experiment.price
    )
