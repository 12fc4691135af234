"""Question files: reads them, splits them, composes several objectives, says what is extractive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from mempo.draws import Key, generator
from mempo.environments.formats import parse_row, read_rows
from mempo.text import normalize_answer
from mempo.types import Passage, Question

_BUILTIN = "builtin:"
_DATA = Path(__file__).parent / "data"


def data_path(name: str) -> Path:
    """The file that a setting names: a path, or `builtin:FOLDER/FILE` of the package's own data.

    Raises:
        ValueError: no such built-in file; the message lists those there are.
    """
    if not name.startswith(_BUILTIN):
        return Path(name)
    path = _DATA / name.removeprefix(_BUILTIN)
    if not path.is_file():
        files = sorted(
            f"{_BUILTIN}{p.relative_to(_DATA).as_posix()}" for p in _DATA.rglob("*.jsonl")
        )
        raise ValueError(f"{name}: no such built-in file; there are {', '.join(files)}")
    return path


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a .parquet or .jsonl file, in the file's order, with unique ids.

    `mempo.environments.formats.parse_row` says which layouts are understood. Where files were
    joined upstream an id can occur twice; the later row gets `#ROW` behind it.

    Args:
        path: the file; `builtin:...` as in `data_path`.

    Raises:
        ValueError: the file is missing, damaged, empty or of a foreign layout, or a row lacks
            text or answers. One line: the file, the row (counted from 1), what to do.
    """
    path = data_path(str(path))
    questions: list[Question] = []
    seen: set[str] = set()
    for number, row in read_rows(path):
        try:
            question = parse_row(row, default_id=f"{path.stem}_{number}")
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
        if question.id in seen:
            question = replace(question, id=f"{question.id}#{number}")
        seen.add(question.id)
        questions.append(question)
    return questions


def split_questions(
    questions: Sequence[Question], test_fraction: float
) -> tuple[list[Question], list[Question]]:
    """(train, test), by a hash of the id: a question stays on its side whatever else is there.

    `test_fraction` in [0, 1] is the expected share of the test side.
    """
    train: list[Question] = []
    test: list[Question] = []
    for question in questions:
        digest = blake2b(question.id.encode(), digest_size=8).digest()
        is_test = int.from_bytes(digest, "big") / 2**64 < test_fraction
        (test if is_test else train).append(question)
    return train, test


def compose(questions: Sequence[Question], k: int, key: tuple[Key, ...]) -> Question:
    """`k` different questions, drawn by `key` alone, asked as one (MEM1's multi-objective tasks).

    Texts are joined with "; "; objectives, answers, parts and supporting ids are concatenated;
    the id is the parts' ids joined with "+". One question stays itself.

    Raises:
        ValueError: `k` is below 1 or larger than the number of questions.
    """
    if not 1 <= k <= len(questions):
        raise ValueError(f"cannot compose {k} objectives from {len(questions)} questions")
    order = generator(*key).permutation(len(questions))[:k]
    return join([questions[i] for i in order])


def is_extractive(question: Question, passages_by_id: Mapping[str, Passage]) -> bool:
    """Whether every objective's answer can be copied from a passage, and only from there.

    True where for each objective some alias stands literally (normalised, whole words) in a
    supporting passage, and no alias is yes/no or occurs in the question itself (a choice). For
    the others P(answer | memory) says little about the memory. False without supporting ids.
    """
    if not question.supporting_ids:
        return False
    asked = question.parts or (question.text,) * question.objectives
    for text, aliases, ids in zip(asked, question.answers, question.supporting_ids, strict=True):
        normalized = [normalize_answer(alias) for alias in aliases]
        if any(alias in ("yes", "no") or _holds(text, alias) for alias in normalized):
            return False
        passages = [passages_by_id[i] for i in ids if i in passages_by_id]
        if not any(_holds(f"{p.title} {p.text}", alias) for p in passages for alias in normalized):
            return False
    return True


def join(questions: Sequence[Question]) -> Question:
    """The questions as one, in their order; a single one as it is."""
    if len(questions) == 1:
        return questions[0]
    parts = [q.parts or ((q.text,) if q.objectives == 1 else ()) for q in questions]
    ids = [q.supporting_ids or ((),) * q.objectives for q in questions]
    return Question(
        id="+".join(q.id for q in questions),
        text="; ".join(q.text for q in questions),
        objectives=sum(q.objectives for q in questions),
        answers=[aliases for q in questions for aliases in q.answers],
        parts=tuple(part for group in parts for part in group) if all(parts) else (),
        supporting_ids=tuple(i for group in ids for i in group)
        if any(q.supporting_ids for q in questions)
        else (),
        source="+".join(dict.fromkeys(q.source for q in questions if q.source)),
    )


def _holds(text: str, normalized: str) -> bool:
    """Whether the normalised words stand in the text, in order and whole."""
    return bool(normalized) and f" {normalized} " in f" {normalize_answer(text)} "
