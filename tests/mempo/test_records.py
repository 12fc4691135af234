from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mempo.records import SCHEMA, VERSION, groups, read_rollouts, write_rollouts
from mempo.types import Question, Step, Trajectory

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
FLOAT32 = st.floats(-100, 0, width=32)
SCORE = st.floats(0, 2)
STEPS = st.builds(
    Step,
    prompt_ids=IDS,
    head_tokens=st.integers(0, 5),
    output_ids=IDS,
    logprobs=st.lists(FLOAT32, max_size=5),
    finish_reason=st.sampled_from(["stop", "eos", "length"]),
    mem_spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2),
    memory=st.none() | TEXT,
    action=st.sampled_from(["tool_call", "answer", "none"]),
    action_text=TEXT,
    well_formed=st.booleans(),
    observation=TEXT,
    observation_ids=IDS,
    policy_version=st.integers(0, 9),
)
QUESTIONS = st.lists(st.lists(TEXT, min_size=1, max_size=2), min_size=1, max_size=3).flatmap(
    lambda answers: st.builds(
        Question, id=TEXT, text=TEXT, objectives=st.just(len(answers)), answers=st.just(answers)
    )
)
TRAJECTORIES = st.lists(
    st.builds(
        Trajectory,
        question=QUESTIONS,
        rollout=st.integers(0, 9),
        steps=st.lists(STEPS, max_size=3),
        status=st.sampled_from(["answered", "context_overflow"]),
        answer=TEXT,
        reward=SCORE,
        f1=SCORE,
        em=SCORE,
        format=SCORE,
    ),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(trajectories=TRAJECTORIES, data=st.data())
def test_what_was_written_is_read(
    tmp_path: Path, trajectories: list[Trajectory], data: st.DataObject
) -> None:
    count = sum(len(t.steps) for t in trajectories)
    values = data.draw(st.lists(st.floats(), min_size=count, max_size=count))
    path = write_rollouts(tmp_path / "a" / "r.parquet", trajectories, {"adv_mem": values})
    again, credit = read_rollouts(path)
    assert again == trajectories
    assert list(credit) == ["adv_mem"]
    np.testing.assert_array_equal(credit["adv_mem"], values)
    assert [p.name for p in path.parent.iterdir()] == ["r.parquet"]  # nothing half written


def test_fault_33_a_rollout_that_ended_before_its_first_step_is_not_lost(
    tmp_path: Path,
    make_question: Callable[..., Question],
    make_step: Callable[..., Step],
    make_trajectory: Callable[..., Trajectory],
) -> None:
    """The mean over trajectories is the same from memory and from the file."""
    long = make_question(id="long")
    written = [
        make_trajectory([], question=long, status="context_overflow", answer=""),
        make_trajectory([make_step(), make_step()], reward=1.0),
        make_trajectory([], question=long, rollout=1, status="context_overflow", answer=""),
    ]
    path = write_rollouts(tmp_path / "r.parquet", written, {"adv_traj": [0.5, math.nan]})
    read, credit = read_rollouts(path)
    assert [(t.question.id, t.rollout, t.status, len(t.steps)) for t in read] == [
        ("long", 0, "context_overflow", 0),
        ("q", 0, "answered", 2),
        ("long", 1, "context_overflow", 0),
    ]
    assert credit["adv_traj"][0] == 0.5 and math.isnan(credit["adv_traj"][1])
    assert pd.read_parquet(path)["step"].tolist() == [-1, 0, 1, -1]


def test_the_file_is_a_table_that_pandas_reads(
    tmp_path: Path, make_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> None:
    step = make_step([7, 8, 9], mem_spans=[(1, 3)], memory="m")
    path = write_rollouts(tmp_path / "r.parquet", [make_trajectory([step])], {"adv_mem": [0.5]})
    frame = pd.read_parquet(path)
    assert {
        "question_id", "rollout", "step", "prompt_ids", "output_ids", "logprobs", "mem_spans",
        "action", "action_text", "observation", "status", "policy_version", "reward", "f1", "em",
        "format", "adv_mem",
    } <= set(frame.columns)  # fmt: skip
    row = frame.iloc[0]
    assert row["output_ids"].tolist() == [7, 8, 9]
    assert [span.tolist() for span in row["mem_spans"]] == [[1, 3]]
    metadata = pq.read_schema(path).metadata
    assert metadata is not None and metadata[b"mempo.rollouts"] == VERSION.encode()


def test_writing_again_replaces_the_file(
    tmp_path: Path, make_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> None:
    path = tmp_path / "r.parquet"
    for rollout in (1, 2):
        write_rollouts(path, [make_trajectory([make_step()], rollout=rollout)])
    assert [t.rollout for t in read_rollouts(path)[0]] == [2]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read_rollouts(path)
    path.write_text("no parquet")
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read_rollouts(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ValueError, match="schema version none, this code reads 1"):
        read_rollouts(path)
    newer = SCHEMA.with_metadata({"mempo.rollouts": "2"})
    pq.write_table(pa.Table.from_pylist([], schema=newer), path)
    with pytest.raises(ValueError, match="schema version 2, this code reads 1"):
        read_rollouts(path)


def test_credit_of_another_length_is_refused(
    tmp_path: Path, make_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> None:
    steps = [make_step(), make_step()]
    with pytest.raises(ValueError, match="adv_mem: 1 values for 2 steps"):
        write_rollouts(tmp_path / "r.parquet", [make_trajectory(steps)], {"adv_mem": [0.5]})
    assert not list(tmp_path.iterdir())


def test_groups_are_by_question_in_order(
    make_question: Callable[..., Question], make_trajectory: Callable[..., Trajectory]
) -> None:
    a, b = make_question(id="a"), make_question(id="b")
    made = [make_trajectory([], question=q, rollout=r) for q in (b, a) for r in (0, 1)]
    assert groups(made) == [made[:2], made[2:]]
    assert groups([]) == []
