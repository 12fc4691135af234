"""What the cold start learns from: batches as a function of (seed, step)."""

from __future__ import annotations

from typing import Any, Protocol

from mempo.agent.coldstart import atlas_batch
from mempo.config import Experiment
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.types import Row


class ColdStartData(Protocol):
    """Rows to learn from, rows to be measured on, and what to tell a person about them."""

    def batch(self, step: int) -> list[Row]: ...

    def held_out(self) -> list[Row]: ...

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

    def facts(self) -> dict[str, Any]:
        return {"scripted trajectories": "endless", "rows a step": self.experiment.sft.batch_size}

    def _rows(self, key: tuple[str | int, ...], progress: float) -> list[Row]:
        e = self.experiment
        return atlas_batch(
            self.world, self.codec, e.agent, e.sft, key=(e.seed, *key), progress=progress
        )
