"""Question files in any of this field's layouts: their rows, and a row as a `Question`.

Rows are plain Python values: pyarrow and json give nested lists where pandas would give numpy
arrays inside cells.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mempo.types import Question

TEXT_COLUMNS = ("question", "prompt", "extra_info")
ANSWER_COLUMNS = ("reward_model", "golden_answers")
COLUMNS = (*TEXT_COLUMNS, *ANSWER_COLUMNS, "id", "data_source", "supporting_ids")

_ALIAS_MARK = "<|answer_split|>"  # DeepResearcher
_MEM1_LEAD = "Answer the following questions:"
_MEMACT_KEY = re.compile(r"Q(\d+)")
_MEMACT_LINE = re.compile(r"^Q(\d+):[ \t]*(.*\S)[ \t]*$", re.MULTILINE)
_SEARCH_R1_LEAD = re.compile(r".*</answer>.*?Question:(.*)", re.DOTALL)


def read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(row number from 1, column -> value) for every row of a .parquet or .jsonl file.

    Of a parquet file only the columns in `COLUMNS` are read: MemAgent's `context` can be huge.

    Raises:
        ValueError: the file is missing, damaged, empty, or has no column for texts or answers.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give the path of a .jsonl or .parquet file")
    match path.suffix:
        case ".parquet":
            columns, rows = _parquet_rows(path)
        case ".jsonl":
            rows = _jsonl_rows(path)
            columns = sorted({column for _, row in rows for column in row})
        case _:
            raise ValueError(f"{path}: unknown kind of file; give a .jsonl or a .parquet file")
    if not rows:
        raise ValueError(f"{path}: the file has no rows; give a file with questions")
    lacks = []
    if not set(TEXT_COLUMNS) & set(columns):
        lacks.append("no question text (column 'question', 'prompt' or 'extra_info')")
    if not set(ANSWER_COLUMNS) & set(columns):
        lacks.append("no answers (column 'reward_model' or 'golden_answers')")
    if lacks:
        there = ", ".join(columns)
        raise ValueError(f"{path}: {' and '.join(lacks)}; rename a column (there are: {there})")
    return rows


def parse_row(row: Mapping[str, Any], default_id: str) -> Question:
    """The question of one row.

    The text is the column `question`, else `extra_info.question`, else the last user message of
    `prompt`. The answers are `reward_model.ground_truth` in the layouts of Search-R1, MEM1,
    MemAgent, MemAct and DeepResearcher, else `golden_answers`. Instructions around the text are
    removed only where the row's layout makes them certain; other text stays as it is.

    Args:
        row: column -> value, missing columns allowed.
        default_id: the id where the row has none.

    Raises:
        ValueError: no text, or an objective without an answer (one line, without the file).
    """
    answers, keys = _answers(row)
    text, parts = _unwrap(_text(row), len(answers), keys)
    extra = _mapping(row.get("extra_info"))
    index = extra.get("index")
    identity = row.get("id")
    if identity is None:
        # A bare number counts the rows of one upstream split: no name outside of it.
        identity = index if isinstance(index, str) and index else default_id
    return Question(
        id=str(identity),
        text=text,
        objectives=len(answers),
        answers=answers,
        parts=parts,
        supporting_ids=_supporting_ids(row.get("supporting_ids"), len(answers)),
        source=str(row.get("data_source") or ""),
    )


def _parquet_rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    try:
        columns = pq.read_schema(path).names
        # ParquetFile reads this one file; read_table would also take columns from folder names.
        table = pq.ParquetFile(path).read(columns=[c for c in columns if c in COLUMNS])
        return columns, list(enumerate(table.to_pylist(), start=1))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: not a readable parquet file ({reason}); copy it anew") from error


def _jsonl_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable text file ({error}); copy it anew") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, row {number}: not JSON ({error}); correct it") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: not a JSON object; write {{...}} on a line")
        rows.append((number, row))
    return rows


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    asked = [prompt] if isinstance(prompt, str) else []
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        asked = [m.get("content") for m in map(_mapping, prompt) if m.get("role") == "user"]
    candidates = (row.get("question"), _mapping(row.get("extra_info")).get("question"), *asked[-1:])
    for text in candidates:
        if isinstance(text, str) and text.strip():
            return text.strip()
    raise ValueError(
        "no question text; give it in the column 'question', in extra_info.question or as a "
        "user message of 'prompt'"
    )


def _answers(row: Mapping[str, Any]) -> tuple[list[list[str]], list[int]]:
    """Aliases per objective, and MemAct's numbers of the questions where it is its layout."""
    value = _mapping(row.get("reward_model")).get("ground_truth")
    if isinstance(value, Mapping):
        value = value.get("target")
    keyed = _memact_answers(value) if isinstance(value, str) else {}
    if keyed:
        answers = [_alias_list(keyed[number]) for number in sorted(keyed)]
    else:
        answers = _objectives(value)
        if not any(answers):
            answers = _objectives(row.get("golden_answers"))
    if not answers:
        raise ValueError(
            "no answers; give them in reward_model.ground_truth or in the column 'golden_answers'"
        )
    for number, aliases in enumerate(answers, start=1):
        if not aliases:
            raise ValueError(f"no answer to objective {number}; remove the row or give an answer")
    return answers, sorted(keyed)


def _objectives(value: Any) -> list[list[str]]:
    """A string or a flat list are aliases of one objective; a list inside makes objectives."""
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return [_alias_list(item) for item in value]
    aliases = _alias_list(value)
    return [aliases] if aliases else []


def _alias_list(value: Any) -> list[str]:
    """Non-empty aliases, stripped, in order, each once."""
    aliases: dict[str, None] = {}
    for item in value if isinstance(value, list) else [value]:
        match item:
            case str():
                aliases.update(dict.fromkeys(part.strip() for part in item.split(_ALIAS_MARK)))
            case bool() | None:
                continue
            case int() | float() if math.isfinite(item):
                aliases[str(item)] = None
    return [alias for alias in aliases if alias]


def _memact_answers(text: str) -> dict[int, Any]:
    """{1: answer, ...} of a JSON object {"Q1": answer, ...}; {} for every other string."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    matches = {key: _MEMACT_KEY.fullmatch(key) for key in _mapping(value)}
    return (
        {int(match[1]): value[key] for key, match in matches.items() if match}
        if all(matches.values())
        else {}
    )


def _unwrap(text: str, objectives: int, keys: list[int]) -> tuple[str, tuple[str, ...]]:
    """(text without a known project's instructions, wording of each objective or nothing)."""
    if keys:
        lines = {int(number): part for number, part in _MEMACT_LINE.findall(text)}
        if sorted(lines) == keys:
            parts = tuple(lines[number] for number in keys)
            return "; ".join(parts), parts
        return text, ()
    if objectives > 1:
        text = text.rpartition(_MEM1_LEAD)[2].strip() or text
        parts = tuple(part.strip() for part in text.split("; "))
        # A semicolon inside a question makes the cut uncertain: then the parts stay unknown.
        return text, parts if len(parts) == objectives and all(parts) else ()
    wrapped = _SEARCH_R1_LEAD.fullmatch(text)
    text = (wrapped[1].strip() if wrapped else "") or text
    return text, (text,)


def _supporting_ids(value: Any, objectives: int) -> tuple[tuple[str, ...], ...]:
    """Passage ids per objective; a flat list belongs to the only objective."""
    if not isinstance(value, list) or not value:
        return ()
    per_objective = value if isinstance(value[0], list) else [value]
    if len(per_objective) != objectives:
        return ()
    return tuple(tuple(str(item) for item in ids) for ids in per_objective)
