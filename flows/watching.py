"""Who watches the training runs of this context, and may stop them early.

A context variable, and no parameter of the `train` flow: Prefect keeps parameters as JSON and
shows them as a form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[int, Mapping[str, float]], None]  # (iteration, what was measured after it)

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


class Pruned(Exception):
    """What a watch raises to stop a run that is not worth going on with."""

    def __init__(self, iteration: int):
        super().__init__(f"stopped after iteration {iteration}")
        self.iteration = iteration


def current_watch() -> Watch | None:
    """The watch of this context."""
    return _watch.get()


@contextmanager
def watched(watch: Watch | None) -> Iterator[None]:
    """Let `watch` see every evaluation during the training runs of the block; None: nobody."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
