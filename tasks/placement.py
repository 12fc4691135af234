"""Ray actors for the models of a flow: placed together, waited for with a limit, always freed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import ray
import ray.exceptions
from prefect.concurrency.sync import concurrency
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mempo.config import Cluster, Experiment
from tasks.learner_actors import ColdStart, Learner
from tasks.sampler_actor import Sampler

POLL_S = 2.0  # between looks at a cluster without room
SLOT_POLL_S = 5.0  # that Prefect is asked for slots before a stop is looked for

_live: set[Any] = set()  # actors that this process made and has not killed
_stopping = threading.Event()
_guard = threading.Lock()


@dataclass(frozen=True)
class Models:
    """The actors of a run: samplers that share the questions, learners that share the update."""

    samplers: list[Any]
    learners: list[Any]  # the ranks of one learner
    nodes: tuple[str, ...] = ()  # ids of the Ray nodes that they are on, samplers first


class ModelLost(RuntimeError):
    """An actor, or its node, died: with new actors the run can go on from its checkpoint."""


@contextmanager
def rl_models(experiment: Experiment, threads: int) -> Iterator[Models]:
    """Samplers and learner as actors in one placement group, killed at the end of the block."""
    c = experiment.cluster
    kinds: list[type] = []  # in turn: with half a GPU each, a sampler and a rank share one
    for i in range(max(c.samplers, c.learners)):
        kinds += [Sampler] * (i < c.samplers) + [Learner] * (i < c.learners)
    room = {Sampler: (c.sampler_cpus, c.sampler_gpus), Learner: (c.learner_cpus, c.learner_gpus)}
    with _placed(kinds, [room[kind] for kind in kinds], experiment, threads) as made:
        samplers, learners = (
            [actor for actor, kind in zip(made, kinds, strict=True) if kind is wanted]
            for wanted in (Sampler, Learner)
        )
        _join(learners, c)
        calls = [actor.node.remote() for actor in (*samplers, *learners)]
        nodes = wait_all(calls, c, "start of the models")
        yield Models(samplers, learners, tuple(nodes))


@contextmanager
def sft_model(experiment: Experiment, threads: int) -> Iterator[Models]:
    """The actors of the cold start, a learner without samplers."""
    c = experiment.cluster
    bundles = [(c.learner_cpus, c.learner_gpus)] * c.learners
    with _placed([ColdStart] * c.learners, bundles, experiment, threads) as made:
        _join(made, c)
        yield Models([], made)


def _join(ranks: list[Any], cluster: Cluster) -> None:
    """Connect the ranks of a learner with one another."""
    address = wait(ranks[0].address.remote(), cluster, "start of the learner")
    calls = [rank.join.remote(i, len(ranks), address) for i, rank in enumerate(ranks)]
    wait_all(calls, cluster, "start of the learner")


@contextmanager
def _placed(
    classes: list[type], bundles: list[tuple[float, float]], experiment: Experiment, threads: int
) -> Iterator[list[Any]]:
    cluster = experiment.cluster
    with gpu_slots(sum(gpus for _, gpus in bundles), cluster):
        yield from _in_group(classes, bundles, experiment, threads)


GPU_LIMIT = "mempo-gpu"  # a global concurrency limit in Prefect, where somebody has made it


@contextmanager
def gpu_slots(gpus: float, cluster: Cluster) -> Iterator[None]:
    """Slots of Prefect's limit GPU_LIMIT, one a GPU, so that runs queue there where it is set."""
    if not gpus:
        yield
        return
    deadline = time.monotonic() + cluster.timeout_s
    with ExitStack() as held:
        while True:
            check_stop()
            left = deadline - time.monotonic()
            try:
                slots = concurrency(
                    GPU_LIMIT, occupy=ceil(gpus), timeout_seconds=max(min(left, SLOT_POLL_S), 0.1)
                )
                held.enter_context(slots)
                break
            except TimeoutError:
                if left <= SLOT_POLL_S:
                    raise
        yield


def _in_group(
    classes: list[type], bundles: list[tuple[float, float]], experiment: Experiment, threads: int
) -> Iterator[list[Any]]:
    cluster = experiment.cluster
    group = placement_group(
        [{"CPU": c, **({"GPU": g} if g else {})} for c, g in bundles],
        strategy=cluster.placement.upper(),
    )
    made: list[Any] = []
    try:
        _wait_for_room(group, bundles, cluster)
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


def _wait_for_room(group: Any, bundles: list[tuple[float, float]], cluster: Cluster) -> None:
    """Wait until the actors have their place.

    What other runs hold comes free, so `cluster.timeout_s` is waited for it; what the whole
    cluster lacks only while nodes may still join, `cluster.place_timeout_s`.

    Raises:
        RuntimeError: no room until then; names what was asked for and what is free.
    """
    begin = time.monotonic()
    while not group.wait(POLL_S):
        check_stop()
        total = ray.cluster_resources()
        busy = all(
            sum(bundle[i] for bundle in bundles) <= total.get(unit, 0)
            for i, unit in enumerate(("CPU", "GPU"))
        )
        name = "timeout_s" if busy else "place_timeout_s"
        limit: int = getattr(cluster, name)
        if time.monotonic() - begin > limit:
            free = ray.available_resources()
            raise RuntimeError(
                f"Ray has no room for {bundles} (CPUs, GPUs) after {limit} s; "
                f"free: {free.get('CPU', 0)} CPUs, {free.get('GPU', 0)} GPUs of "
                f"{total.get('CPU', 0)} and {total.get('GPU', 0)}; lower cluster.sampler_* and "
                f"cluster.learner_*, or cluster.parallel, or raise cluster.{name}"
            )


@contextmanager
def stopped() -> Iterator[None]:
    """Kill the actors of all flows of this process, so that threads which wait for them go on.

    While the block runs those threads get a KeyboardInterrupt, as if Ctrl-C had reached them,
    wherever they wait for a model or want to make one.
    """
    with _guard:
        outermost = not _stopping.is_set()
        _stopping.set()
        for actor in list(_live):
            ray.kill(actor)
    try:
        yield
    finally:
        if outermost:
            _stopping.clear()


def check_stop() -> None:
    """Raise KeyboardInterrupt in a flow whose models were stopped."""
    if _stopping.is_set():
        raise KeyboardInterrupt


def wait(reference: Any, cluster: Cluster, stage: str) -> Any:
    """The result of an actor call, or an error that names the stage; never waits for ever."""
    return wait_all([reference], cluster, stage)[0]


def wait_all(references: Sequence[Any], cluster: Cluster, stage: str) -> list[Any]:
    """The results of calls of several actors, in order; the first that fails ends the waiting.

    Raises:
        TimeoutError: `cluster.timeout_s` is over.
        ModelLost: an actor died.
        Exception: what a call raised.
    """
    deadline = time.monotonic() + cluster.timeout_s
    pending = list(references)
    while pending:
        left = max(deadline - time.monotonic(), 0)
        done, pending = ray.wait(pending, num_returns=1, timeout=left)
        if not done:
            raise TimeoutError(
                f"stage {stage!r} took longer than cluster.timeout_s = {cluster.timeout_s} s"
            )
        _get(done[0], stage)
    return [_get(reference, stage) for reference in references]


def _get(reference: Any, stage: str) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised inside the actor: show the cause itself
        check_stop()  # then it may be a rank that lost the others
        raise (error.cause or error) from error
    except ray.exceptions.RayActorError as error:
        check_stop()
        name, reason = _cause(str(error))
        if name == "ValueError":  # what a user did, found out while the actor was made
            raise ValueError(reason) from error
        if "creation task" in str(error):  # new ones would not start, either
            raise RuntimeError(f"a model could not be started ({name}: {reason})") from error
        raise ModelLost(f"stage {stage!r}: its actor died ({name}: {reason})") from error
    except ray.exceptions.ObjectLostError as error:  # with the node that had it
        check_stop()
        raise ModelLost(f"stage {stage!r}: its result was lost with a node") from error


def _cause(text: str) -> tuple[str, str]:
    """(kind, message) of the last error in a dead actor's story, which is a coloured traceback."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", plain, re.MULTILINE)
    return found[-1] if found else ("ActorDied", " ".join(plain.split())[:300])
