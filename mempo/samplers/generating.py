"""What both samplers can do by `submit` and `poll`: a list of requests at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mempo.policies.distribution import Sampling
from mempo.types import Completion, Request


class Generating(ABC):
    """Adds `generate` to a sampler of the agent loop."""

    @abstractmethod
    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        """As in `mempo.agent.rollout.Sampler`."""

    @abstractmethod
    def poll(self) -> list[tuple[int, Completion]]:
        """As in `mempo.agent.rollout.Sampler`."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion a request, in order. A stop string stays in the ids."""
        for number, request in enumerate(requests):
            self.submit(number, request, sampling)
        done: dict[int, Completion] = {}
        while len(done) < len(requests):
            done |= dict(self.poll())
        return [done[number] for number in range(len(requests))]
