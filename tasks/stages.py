"""The stages of an iteration as Prefect tasks.

They run on Ray workers and are light: the actors do the work and hold the CPUs, and between
stages go paths and a few numbers. Actor handles cannot be hashed, so caching is off explicitly.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from httpx import HTTPError
from prefect import State, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.task_runners import TaskRunner
from prefect_ray import RayTaskRunner
from prefect_ray.context import remote_options
from ray.exceptions import RayError, RayTaskError

from mempo.config import Cluster, Experiment
from tasks.actors import Metrics
from tasks.placement import ModelLost, Models, check_stop, wait_all
from tasks.sampler_actor import sampled_metrics, thrown

RETRY_DELAY_S = 5


class _ConnectedRunner(RayTaskRunner):
    """Prefect's runner for Ray, except that the flow itself connects to Ray (flows/connecting.py).

    Prefect enters the runner before the flow knows its configuration, and then a private Ray would
    be started.
    """

    def __enter__(self) -> Self:
        TaskRunner.__enter__(self)  # pyright: ignore[reportArgumentType]
        self._owns_ray = False
        return self


def ray_runner() -> Any:
    """The task runner of every flow: it uses the Ray that this process is connected to."""
    return _ConnectedRunner()


def stage(name: str, *, retries: int = 0) -> Callable[[Callable[..., Any]], Any]:
    """A Prefect task that never caches or persists.

    `retries`: how often it is run again where a disk or the network failed; only for a stage that
    leaves the models as they were. What a user or the code did wrong would fail again.
    """
    return task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=retries,
        retry_delay_seconds=RETRY_DELAY_S,
        retry_condition_fn=_may_pass if retries else None,
    )


def _may_pass(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether what failed is the world outside: files, sockets, time-outs of servers."""
    failed = state.result(raise_on_failure=False)
    return isinstance(failed, (OSError, HTTPError)) and not isinstance(failed, TimeoutError)


def _tell(stage_name: str, metrics: Metrics) -> Metrics:
    """Log the numbers on the task run's page in Prefect, from the worker that has them."""
    shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    get_run_logger().info("%s on %s: %s", stage_name, socket.gethostname(), shown)
    return metrics


def run(stage_task: Any, *args: Any) -> Any:
    """Run a stage on a Ray worker and wait for its result."""
    return start(stage_task, *args)()


def start(stage_task: Any, *args: Any) -> Callable[[], Any]:
    """Begin a stage on a Ray worker; the call that waits for its result."""
    check_stop()
    with _lost_models(stage_task), remote_options(num_cpus=0, max_retries=0):
        future = stage_task.submit(*args)

    def finish() -> Any:
        with _lost_models(stage_task):
            return future.result()

    return finish


@contextmanager
def _lost_models(stage_task: Any) -> Iterator[None]:
    """ModelLost where what fails is the worker or the node that runs a stage."""
    try:
        yield
    except Exception as error:
        check_stop()  # then what failed is only that its models were killed
        if isinstance(error, RayError) and not isinstance(error, RayTaskError):
            raise ModelLost(f"{stage_task.name}: {type(error).__name__}") from error
        raise


@stage("rollout", retries=2)
def rollout(cluster: Cluster, models: Models, path: Path, iteration: int) -> Metrics:
    """Sample an iteration's trajectories into `path`; `time/rollout_s` is what that took."""
    begun = time.monotonic()
    files = _parts(path, models)
    for file in files:  # of a life that was cut off
        thrown(file).unlink(missing_ok=True)
    calls = [
        sampler.rollout.remote(file, iteration, part, len(files))
        for part, (sampler, file) in enumerate(zip(models.samplers, files, strict=True))
    ]
    (metrics, *others) = wait_all(calls, cluster, "rollout")
    away = [thrown(file) for file in files if thrown(file).is_file()]
    if others:
        from mempo.records import merge_rollouts

        kept = merge_rollouts(files, path)
        metrics = sampled_metrics(kept, merge_rollouts(away, thrown(path)) if away else [])
    thrown(path).unlink(missing_ok=True)
    return _tell("rollout", {**metrics, "time/rollout_s": time.monotonic() - begun})


@stage("score")
def score(cluster: Cluster, models: Models, path: Path, iteration: int) -> Metrics:
    """Add P(answer | memory) and advantages to `path`."""
    return _tell("score", _learn(cluster, models, "score", path, iteration))


@stage("train")
def train(
    cluster: Cluster,
    models: Models,
    path: Path,
    weights: Path | None,
    iteration: int,
    audited: bool = False,
) -> Metrics:
    """Update the learner on `path`, and bring the new weights to the samplers.

    weights: their file on the way; None where the samplers are at work, and `take_over` follows.
    audited: `take_over` has audited the rollouts.
    """
    metrics = _learn(cluster, models, "train", path, iteration, audited)
    if weights:
        _sync(cluster, models, weights, iteration + 1)
    return _tell("train", metrics)


@stage("take over")
def take_over(cluster: Cluster, models: Models, path: Path, weights: Path, version: int) -> Metrics:
    """Audit the rollouts in `path`, sampled during an update; then the samplers get its weights."""
    metrics = _learn(cluster, models, "audit", path)
    _sync(cluster, models, weights, version)
    return _tell("take over", metrics)


@stage("restore")
def restore(cluster: Cluster, models: Models, folder: Path, weights: Path, version: int) -> None:
    """Bring learner and samplers to a checkpoint; `version` is that of its weights."""
    _learn(cluster, models, "restore", folder)
    _sync(cluster, models, weights, version)


@stage("evaluate", retries=2)
def evaluate(
    experiment: Experiment, models: Models, folder: Path, objectives: int, mode: str
) -> tuple[Metrics, Metrics]:
    """Evaluate at one number of objectives; (metrics, costs). Writes rollouts and task rows."""
    from mempo.environments.atlas import facts_of
    from mempo.evaluation.metrics import evaluation_metrics, rollout_metrics, task_rows
    from mempo.records import merge_rollouts, read_rollouts

    cluster, settings = experiment.cluster, experiment.evaluate
    path = folder / f"evaluate-n{objectives}-{mode}.parquet"
    temperature = settings.temperature if mode == "greedy" else 1.0
    passes = settings.passes if mode == "sampled" else 1
    files = _parts(path, models)
    calls = [
        sampler.evaluate.remote(file, objectives, temperature, passes, part, len(files))
        for part, (sampler, file) in enumerate(zip(models.samplers, files, strict=True))
    ]
    (costs, *others) = wait_all(calls, cluster, "evaluate")
    if others:
        costs = rollout_metrics(merge_rollouts(files, path))
    costs |= _learn(cluster, models, "score_memories", path)
    trajectories, credit = read_rollouts(path)
    known = facts_of if experiment.agent.kind == "external" else None
    rows = task_rows(trajectories, credit["p_answer_mem"], experiment.price, known)
    path.with_suffix(".json").write_text(json.dumps([{**r, "mode": mode} for r in rows]))
    return _tell("evaluate", evaluation_metrics(rows, mode)), {
        k: v for k, v in costs.items() if k.startswith("cost/")
    }


@stage("checkpoint")
def checkpoint(cluster: Cluster, models: Models, folder: Path, state: dict[str, Any]) -> None:
    """Write a complete checkpoint."""
    _learn(cluster, models, "checkpoint", folder, state)


def _learn(cluster: Cluster, models: Models, method: str, *args: Any) -> Any:
    """Call all ranks of the learner; what the first returns."""
    calls = [getattr(rank, method).remote(*args) for rank in models.learners]
    return wait_all(calls, cluster, method.replace("_", " "))[0]


def _sync(cluster: Cluster, models: Models, weights: Path, version: int) -> None:
    """Bring the learner's weights to the samplers, which prove that they arrived."""
    proof = _learn(cluster, models, "publish", weights)
    calls = [sampler.load.remote(weights, version, proof) for sampler in models.samplers]
    wait_all(calls, cluster, "load weights")


def _parts(path: Path, models: Models) -> list[Path]:
    """A file for each sampler; `path` itself where there is one."""
    count = len(models.samplers)
    return [path] if count == 1 else [path.with_suffix(f".{i}.parquet") for i in range(count)]


@stage("cold start")
def cold_start(cluster: Cluster, models: Models, start: int, stop: int) -> Metrics:
    """Supervised steps start..stop-1."""
    return _tell("cold start", _learn(cluster, models, "run", start, stop))


@stage("validate")
def validate(cluster: Cluster, models: Models) -> Metrics:
    """Loss of the cold start on held-out scripts."""
    return _learn(cluster, models, "validate")
