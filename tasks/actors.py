"""What the models' homes share: Ray actors that the flow owns.

The classes (sampler_actor.py, learner_actors.py) are plain; `tasks.placement` makes actors of
them. torch and the library parts that need it are imported inside, where the actor lives, so that
flows load without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mempo import own
from mempo.config import Experiment
from tasks.processes import release_memory

Metrics = dict[str, float]
P = ParamSpec("P")
R = TypeVar("R")


def computing(method: Callable[P, R]) -> Callable[P, R]:
    """A method that computes much: what it has freed goes back to the system at its end."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        finally:
            release_memory()

    return run


def set_up(experiment: Experiment, threads: int) -> None:
    import torch
    import transformers

    own.check(experiment)  # on the machine where they will be called
    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()


def node() -> str:
    """The id of the Ray node that this process runs on."""
    import ray

    return ray.get_runtime_context().get_node_id()
