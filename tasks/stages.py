"""The stages of an iteration as Prefect tasks.

They run on Ray workers and are light: the actors do the work and hold the CPUs, and between
stages go paths and a few numbers. Actor handles cannot be hashed, so caching is off explicitly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect_ray import RayTaskRunner
from prefect_ray.context import remote_options

from mempo.config import Cluster, Experiment
from tasks.actors import Metrics
from tasks.placement import check_stop, wait


def ray_runner() -> Any:
    """The task runner of every flow: it uses the Ray that this process is connected to."""
    return RayTaskRunner()


def stage(name: str) -> Callable[[Callable[..., Any]], Any]:
    """A Prefect task that never caches, persists or retries: a stage is run once, by its flow."""
    return task(name=name, cache_policy=NO_CACHE, persist_result=False, retries=0)


def run(stage_task: Any, *args: Any) -> Any:
    """Run a stage on a Ray worker and wait for its result."""
    check_stop()
    try:
        with remote_options(num_cpus=0, max_retries=0):
            return stage_task.submit(*args).result()
    except Exception:
        check_stop()  # then what failed is only that its models were killed
        raise


@stage("rollout")
def rollout(cluster: Cluster, sampler: Any, path: Path, iteration: int) -> Metrics:
    """Sample an iteration's trajectories into `path`."""
    return wait(sampler.rollout.remote(path, iteration), cluster, "rollout")


@stage("score")
def score(cluster: Cluster, learner: Any, path: Path, iteration: int) -> Metrics:
    """Add P(answer | memory) and advantages to `path`."""
    return wait(learner.score.remote(path, iteration), cluster, "score")


@stage("train")
def train(
    cluster: Cluster, sampler: Any, learner: Any, path: Path, weights: Path, iteration: int
) -> Metrics:
    """Update the learner on `path`, and bring the new weights to the sampler."""
    metrics = wait(learner.train.remote(path, iteration), cluster, "train")
    _sync(cluster, sampler, learner, weights, iteration + 1)
    return metrics


@stage("restore")
def restore(
    cluster: Cluster, sampler: Any, learner: Any, folder: Path, weights: Path, version: int
) -> None:
    """Bring learner and sampler to a checkpoint; `version` is that of its weights."""
    wait(learner.restore.remote(folder), cluster, "restore")
    _sync(cluster, sampler, learner, weights, version)


def _sync(cluster: Cluster, sampler: Any, learner: Any, weights: Path, version: int) -> None:
    """Bring the learner's weights to the sampler, which proves that they arrived."""
    proof = wait(learner.publish.remote(weights), cluster, "publish weights")
    wait(sampler.load.remote(weights, version, proof), cluster, "load weights")


@stage("evaluate")
def evaluate(
    experiment: Experiment, sampler: Any, learner: Any, folder: Path, objectives: int, mode: str
) -> tuple[Metrics, Metrics]:
    """Evaluate at one number of objectives; (metrics, costs). Writes rollouts and task rows."""
    from mempo.environments.atlas import facts_of
    from mempo.evaluation.metrics import evaluation_metrics, task_rows
    from mempo.records import read_rollouts

    cluster, settings = experiment.cluster, experiment.evaluate
    path = folder / f"evaluate-n{objectives}-{mode}.parquet"
    temperature = settings.temperature if mode == "greedy" else 1.0
    passes = settings.passes if mode == "sampled" else 1
    reference = sampler.evaluate.remote(path, objectives, temperature, passes)
    costs = wait(reference, cluster, "evaluate")
    costs |= wait(learner.score_memories.remote(path), cluster, "score memories")
    trajectories, credit = read_rollouts(path)
    known = facts_of if experiment.agent.kind == "external" else None
    rows = task_rows(trajectories, credit["p_answer_mem"], experiment.price, known)
    path.with_suffix(".json").write_text(json.dumps([{**r, "mode": mode} for r in rows]))
    return evaluation_metrics(rows, mode), {k: v for k, v in costs.items() if k.startswith("cost/")}


@stage("checkpoint")
def checkpoint(cluster: Cluster, learner: Any, folder: Path, state: dict[str, Any]) -> None:
    """Write a complete checkpoint."""
    wait(learner.checkpoint.remote(folder, state), cluster, "checkpoint")


@stage("cold start")
def cold_start(cluster: Cluster, model: Any, start: int, stop: int) -> Metrics:
    """Supervised steps start..stop-1."""
    return wait(model.run.remote(start, stop), cluster, "cold start")


@stage("validate")
def validate(cluster: Cluster, model: Any) -> Metrics:
    """Loss of the cold start on held-out scripts."""
    return wait(model.validate.remote(), cluster, "validate")
