from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import pytest

from mempo.evaluation.describe import describe
from mempo.policies.codec import Codec
from mempo.types import Step, Trajectory


@pytest.fixture
def trajectories(
    codec: Codec, write_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> list[Trajectory]:
    call = "<mem>m</mem><think>t</think><tool_call>river</tool_call>"
    answer = "<mem>m</mem><think>t</think><answer>Paris</answer>\n"
    first = make_trajectory(
        [write_step(codec, call, "The Seine."), write_step(codec, answer)], reward=1.0, em=1.0
    )
    return [first, make_trajectory([write_step(codec, answer)], rollout=1)]


def test_a_description_is_plain_data_with_each_step_s_own_credit(
    codec: Codec, trajectories: list[Trajectory]
) -> None:
    credit: dict[str, Sequence[float | None]] = {
        "p_answer_mem": [0.25, 0.5, math.nan, 9.0],  # longer than what is described
        "adv_traj": [1.0, 1.0, -1.0, 9.0],
    }
    first, second = describe(trajectories, credit, codec.text)
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert (first["question"], first["gold"], first["answer"]) == ("Where?", "Paris", "Paris")
    assert (first["status"], first["reward"], first["advantage"]) == ("answered", 1.0, 1.0)
    step = first["steps"][0]
    assert step == {
        "memory": "m",
        "text": "<mem>m</mem><think>t</think><tool_call>river</tool_call>",
        "action": "tool_call",
        "query_or_answer": "river",
        "observation": "The Seine.",
        "p_answer_mem": 0.25,
        "p_answer_full": None,
        "adv_mem": None,
        "prompt_tokens": 3,
        "output_tokens": len(trajectories[0].steps[0].output_ids),
    }
    assert first["steps"][1]["p_answer_mem"] == 0.5
    assert (second["advantage"], second["steps"][0]["p_answer_mem"]) == (-1.0, None)


def test_each_so_many_th_is_described_with_its_own_credit(
    codec: Codec, trajectories: list[Trajectory]
) -> None:
    credit = {"p_answer_mem": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
    made = describe([*trajectories, *trajectories], credit, codec.text, every=2)
    assert [[s["p_answer_mem"] for s in d["steps"]] for d in made] == [[0.1, 0.2], [0.4, 0.5]]


def test_a_trajectory_without_steps_takes_nobody_s_advantage(
    codec: Codec, trajectories: list[Trajectory], make_trajectory: Callable[..., Trajectory]
) -> None:
    empty = make_trajectory([], status="context_overflow")
    made = describe([empty, *trajectories, empty], {"adv_traj": [1.0, 1.0, -1.0]}, codec.text)
    assert [d["advantage"] for d in made] == [None, 1.0, -1.0, None]
    assert made[0]["steps"] == []
