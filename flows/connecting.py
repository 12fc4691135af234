"""What surrounds a run: checks, runs of dead processes closed, a Prefect server, a Ray.

A command sets all of it up; a flow that Prefect itself started finds a server and does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flows.progress import say
from mempo.config import Experiment

if TYPE_CHECKING:
    from flows.doctor_data import Kind


@contextmanager
def services(experiments: Sequence[Experiment], kind: Kind = "train") -> Iterator[None]:
    """Preflight of all, then a Prefect server and the Ray of the first for the block."""
    from tasks.prefect_server import prefect_server

    _prepare(experiments, kind)
    with prefect_server(say), _ray(experiments[0]):
        yield


@contextmanager
def connected(experiments: Sequence[Experiment], kind: Kind = "train") -> Iterator[None]:
    """Inside a flow: where nobody has connected this process to a Ray, preflight and a Ray.

    Flows of a command, and those inside another flow, find it connected.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    _prepare(experiments, kind)
    with _ray(experiments[0]):
        yield


def _prepare(experiments: Sequence[Experiment], kind: Kind) -> None:
    from flows.doctor import preflight
    from tasks.reaping import reap

    for experiment in experiments:
        preflight(experiment, kind)
    for line in reap(experiments[0].tracking):
        say(line)


@contextmanager
def _ray(experiment: Experiment) -> Iterator[None]:
    from tasks.ray_cluster import connect_ray, shutdown_ray

    say("Ray: joining ..." if experiment.cluster.address else "Ray: starting ...")
    connect_ray(experiment.cluster)
    try:
        yield
    finally:
        shutdown_ray()
