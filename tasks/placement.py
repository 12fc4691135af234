"""Ray actors for the models of a flow: placed together, waited for with a limit, always freed."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mempo.config import Cluster, Experiment
from tasks.learner_actors import ColdStart, Learner
from tasks.sampler_actor import Sampler

PLACE_TIMEOUT_S = 120

_live: set[Any] = set()  # actors that this process made and has not killed
_stopping = threading.Event()
_guard = threading.Lock()


@contextmanager
def rl_models(experiment: Experiment, threads: int) -> Iterator[tuple[Any, Any]]:
    """(sampler, learner) as actors in one placement group, killed at the end of the block."""
    c = experiment.cluster
    bundles = [(c.sampler_cpus, c.sampler_gpus), (c.learner_cpus, c.learner_gpus)]
    with _placed([Sampler, Learner], bundles, experiment, threads) as made:
        yield made[0], made[1]


@contextmanager
def sft_model(experiment: Experiment, threads: int) -> Iterator[Any]:
    """The actor of the cold start."""
    c = experiment.cluster
    bundles = [(c.learner_cpus, c.learner_gpus)]
    with _placed([ColdStart], bundles, experiment, threads) as made:
        yield made[0]


@contextmanager
def _placed(
    classes: list[type], bundles: list[tuple[float, float]], experiment: Experiment, threads: int
) -> Iterator[list[Any]]:
    group = placement_group([{"CPU": c, **({"GPU": g} if g else {})} for c, g in bundles])
    made: list[Any] = []
    try:
        if not group.wait(PLACE_TIMEOUT_S):
            free = ray.available_resources()
            raise RuntimeError(
                f"Ray has no room for {bundles} (CPUs, GPUs) after {PLACE_TIMEOUT_S} s; free: "
                f"{free.get('CPU', 0)} CPUs, {free.get('GPU', 0)} GPUs; lower cluster.sampler_* "
                "and cluster.learner_*, or cluster.parallel"
            )
        for i, (cls, (cpus, gpus)) in enumerate(zip(classes, bundles, strict=True)):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)
            actor = ray.remote(cls).options(
                num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy
            )
            with _guard:
                check_stop()
                made.append(actor.remote(experiment, threads))
                _live.add(made[-1])
        yield made
    finally:
        for actor in made:
            _live.discard(actor)
            ray.kill(actor)
        remove_placement_group(group)


@contextmanager
def stopped() -> Iterator[None]:
    """Kill the actors of all flows of this process, so that threads which wait for them go on.

    While the block runs those threads get a KeyboardInterrupt, as if Ctrl-C had reached them,
    wherever they wait for a model or want to make one.
    """
    with _guard:
        _stopping.set()
        for actor in list(_live):
            ray.kill(actor)
    try:
        yield
    finally:
        _stopping.clear()


def check_stop() -> None:
    """Raise KeyboardInterrupt in a flow whose models were stopped."""
    if _stopping.is_set():
        raise KeyboardInterrupt


def wait(reference: Any, cluster: Cluster, stage: str) -> Any:
    """The result of an actor call, or an error that names the stage; never waits for ever."""
    try:
        return ray.get(reference, timeout=cluster.timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(
            f"stage {stage!r} took longer than cluster.timeout_s = {cluster.timeout_s} s"
        ) from error
    except ray.exceptions.RayTaskError as error:  # raised inside the actor: show the cause itself
        raise (error.cause or error) from error
    except ray.exceptions.RayActorError as error:
        check_stop()
        name, reason = _cause(str(error))
        if name == "ValueError":  # what a user did, found out while the actor was made
            raise ValueError(reason) from error
        raise RuntimeError(f"stage {stage!r}: its actor died ({name}: {reason})") from error


def _cause(text: str) -> tuple[str, str]:
    """(kind, message) of the last error in a dead actor's story, which is a coloured traceback."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", plain, re.MULTILINE)
    return found[-1] if found else ("ActorDied", " ".join(plain.split())[:300])
