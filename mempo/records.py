"""The rollout file: a Parquet row a step, readable with pandas by anyone.

Its columns are a public name (DESIGN: names that others rely on). `VERSION` stands in the file's
metadata and grows when a column changes its meaning. A trajectory that ended before its first
step is a row with `step` -1 and nothing in the columns of a step, so that no rollout is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mempo.types import Question, Step, Trajectory

VERSION = "1"

_SPAN = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("rollout", pa.int32()),
        ("step", pa.int32()),
        ("question", pa.string()),
        ("answers", pa.string()),  # JSON: aliases per objective
        ("prompt_ids", pa.list_(pa.int32())),  # exactly what the policy saw
        ("head_tokens", pa.int32()),  # of them: system prompt and question
        ("output_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),  # of the sampler
        ("mem_spans", pa.list_(_SPAN)),  # [start, end) in output_ids, one per grain
        ("memory", pa.string()),
        ("action", pa.string()),
        ("action_text", pa.string()),
        ("well_formed", pa.bool_()),
        ("observation", pa.string()),
        ("observation_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("policy_version", pa.int32()),
        ("cached_tokens", pa.int32()),  # of prompt_ids, from the sampler's prefix cache
        ("status", pa.string()),
        ("answer", pa.string()),
        ("reward", pa.float64()),
        ("f1", pa.float64()),
        ("em", pa.float64()),
        ("format", pa.float64()),
    ],
    metadata={"mempo.rollouts": VERSION},
)
CREDIT_COLUMNS = (
    *("p_answer_mem", "p_answer_full", "adv_traj", "adv_mem", "gain_bonus"),
    *("p_answer_summary", "p_answer_facts", "adv_summary", "adv_facts"),  # of two grains
)


def write_rollouts(
    path: Path,
    trajectories: Sequence[Trajectory],
    credit: Mapping[str, Sequence[float]] | None = None,
) -> Path:
    """Write trajectories, a row a step in order; `credit` adds float columns (NaN is missing).

    credit: [all steps of all trajectories] values a column. The file appears whole or not at all.
    """
    rows = [
        row
        for t in trajectories
        for row in ([_row(t, i, s) for i, s in enumerate(t.steps)] or [_task_row(t, -1)])
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    is_step = np.array([row["step"] >= 0 for row in rows], dtype=bool)
    for name, values in (credit or {}).items():
        if len(values) != is_step.sum():
            raise ValueError(f"{name}: {len(values)} values for {is_step.sum()} steps")
        column = np.full(len(rows), np.nan)
        column[is_step] = values
        table = table.append_column(name, pa.array(column))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    pq.write_table(table, aside, compression="zstd")
    aside.rename(path)
    return path


def read_rollouts(path: Path) -> tuple[list[Trajectory], dict[str, list[float]]]:
    """Trajectories and credit columns as written. A foreign or older file is a ValueError."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"rollout file {path}: not a readable Parquet file ({error})") from error
    version = (table.schema.metadata or {}).get(b"mempo.rollouts", b"none").decode()
    if version != VERSION:
        raise ValueError(
            f"rollout file {path}: schema version {version}, this code reads {VERSION}; "
            "write it again with `mempo train` or `mempo evaluate`"
        )
    trajectories: list[Trajectory] = []
    if "cached_tokens" not in table.column_names:  # written before there was such a column
        table = table.append_column("cached_tokens", pa.array([0] * len(table), pa.int32()))
    for row in table.select(SCHEMA.names).to_pylist():
        if row["step"] <= 0:
            trajectories.append(_trajectory(row))
        if row["step"] >= 0:
            trajectories[-1].steps.append(_step(row))
    steps = table.filter(pc.field("step") >= 0)
    credit = {n: steps[n].to_pylist() for n in CREDIT_COLUMNS if n in table.column_names}
    return trajectories, credit


def merge_rollouts(parts: Sequence[Path], path: Path) -> list[Trajectory]:
    """Write the rollouts of several files as one, questions in turn, and delete the files.

    Returns what is written: the first question of each part, the second of each, and so on, as
    if questions[i::len(parts)] had gone to part i.
    """
    by_part = [groups(read_rollouts(part)[0]) for part in parts]
    merged = [t for row in zip_longest(*by_part, fillvalue=[]) for group in row for t in group]
    write_rollouts(path, merged)
    for part in parts:
        part.unlink()
    return merged


def _task_row(t: Trajectory, index: int) -> dict[str, Any]:
    return {
        "question_id": t.question.id,
        "rollout": t.rollout,
        "step": index,
        "question": t.question.text,
        "answers": json.dumps(t.question.answers, ensure_ascii=False),
        "status": t.status,
        "answer": t.answer,
        "reward": t.reward,
        "f1": t.f1,
        "em": t.em,
        "format": t.format,
    }


def _row(t: Trajectory, index: int, s: Step) -> dict[str, Any]:
    return _task_row(t, index) | {
        "prompt_ids": s.prompt_ids,
        "head_tokens": s.head_tokens,
        "output_ids": s.output_ids,
        "logprobs": s.logprobs,
        "mem_spans": [list(span) for span in s.mem_spans],
        "memory": s.memory,
        "action": s.action,
        "action_text": s.action_text,
        "well_formed": s.well_formed,
        "observation": s.observation,
        "observation_ids": s.observation_ids,
        "finish_reason": s.finish_reason,
        "policy_version": s.policy_version,
        "cached_tokens": s.cached_tokens,
    }


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    answers = json.loads(row["answers"])
    question = Question(row["question_id"], row["question"], len(answers), answers)
    return Trajectory(
        question,
        row["rollout"],
        [],
        row["status"],
        row["answer"],
        row["reward"],
        row["f1"],
        row["em"],
        row["format"],
    )


def _step(row: Mapping[str, Any]) -> Step:
    return Step(
        prompt_ids=row["prompt_ids"],
        head_tokens=row["head_tokens"],
        output_ids=row["output_ids"],
        logprobs=row["logprobs"],
        finish_reason=row["finish_reason"],
        mem_spans=[(a, b) for a, b in row["mem_spans"]],
        memory=row["memory"],
        action=row["action"],
        action_text=row["action_text"],
        well_formed=row["well_formed"],
        observation=row["observation"],
        observation_ids=row["observation_ids"],
        policy_version=row["policy_version"],
        cached_tokens=row["cached_tokens"],
    )


def groups(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories by question, in order of appearance."""
    by_question: dict[str, list[Trajectory]] = {}
    for t in trajectories:
        by_question.setdefault(t.question.id, []).append(t)
    return list(by_question.values())
