"""What a step sees: the prompt of the next step from the steps so far."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.agent.protocol import memory_block_ids
from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Step


def has_memory(agent: Agent) -> bool:
    """Whether the agent has to write a <mem> in each step."""
    return agent.kind == "self_memory"


def prompt_ids(agent: Agent, codec: Codec, head: Sequence[int], steps: Sequence[Step]) -> list[int]:
    """Ids that the policy sees before step `len(steps)`.

    self_memory, history k   head + the last k steps, each with its reply
    self_memory, history all, and react   head + all steps
    self_memory, history memory   head + the last <mem> block + the latest reply
    """
    history = "all" if agent.kind == "react" else agent.history
    match history:
        case "all":
            kept = steps
        case "memory":
            if not steps:
                return list(head)
            last = steps[-1]
            block = (
                memory_block_ids(codec, last.output_ids, last.mem_spans[0])
                if last.mem_spans
                else []
            )
            return [*head, *block, *last.observation_ids]
        case k:
            kept = steps[-int(k) :]
    return [*head, *(i for step in kept for i in (*step.output_ids, *step.observation_ids))]
