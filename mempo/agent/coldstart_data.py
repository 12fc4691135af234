"""What the cold start learns from: batches as a function of (seed, step)."""

from __future__ import annotations

from typing import Any, Protocol

from mempo.agent.coldstart import atlas_batch, memory_probe
from mempo.config import Experiment
from mempo.draws import generator
from mempo.environments.atlas import AtlasWorld, memory_text
from mempo.policies.codec import Codec
from mempo.types import Row

PROBES = 64  # questions that P(answer | right memory) is measured on


class ColdStartData(Protocol):
    """Rows to learn from, rows to be measured on, and what to tell a person about them."""

    def batch(self, step: int) -> list[Row]: ...

    def held_out(self) -> list[Row]: ...

    def probes(self) -> list[tuple[Row, Row]]:
        """Per held-out question the gold answer after the right memory, and after an empty one.

        Empty for an agent that writes no memory.
        """
        ...

    def facts(self) -> dict[str, Any]: ...


def cold_start_data(experiment: Experiment, codec: Codec) -> ColdStartData:
    """The data for the environment that the experiment names."""
    match experiment.environment.name:
        case "atlas":
            return AtlasColdStart(experiment, codec)
        case "dataset":
            from mempo.agent.coldstart_wiki import WikiColdStart

            return WikiColdStart(experiment, codec)


class AtlasColdStart:
    """Endless scripted trajectories of the atlas world."""

    def __init__(self, experiment: Experiment, codec: Codec):
        self.experiment, self.codec = experiment, codec
        self.world = AtlasWorld(experiment.environment)

    def batch(self, step: int) -> list[Row]:
        return self._rows(("sft", step), step / self.experiment.sft.steps)

    def held_out(self) -> list[Row]:
        return self._rows(("sft-held-out",), 1.0)

    def probes(self) -> list[tuple[Row, Row]]:
        e = self.experiment
        rng = generator(e.seed, "sft-probe")
        found = []
        for _ in range(PROBES if e.agent.remembers else 0):
            question = self.world.question(max(e.sft.objectives), rng)
            facts = [aliases[0] for aliases in question.answers]
            right = memory_text(facts, question.parts, e.agent.grains)
            empty = memory_text([], [], e.agent.grains)
            found.append(memory_probe(self.codec, e.agent, question, right, empty))
        return found

    def facts(self) -> dict[str, Any]:
        return {"scripted trajectories": "endless", "rows a step": self.experiment.sft.batch_size}

    def _rows(self, key: tuple[str | int, ...], progress: float) -> list[Row]:
        e = self.experiment
        return atlas_batch(
            self.world, self.codec, e.agent, e.sft, key=(e.seed, *key), progress=progress
        )
