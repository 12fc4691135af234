"""The world of question files: reads them, composes several objectives, answers by a retriever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import comb
from pathlib import Path
from typing import TypeVar

from mempo.config import Environment
from mempo.draws import Key, generator
from mempo.environments.formats import parse_row, read_rows
from mempo.environments.hops import plan
from mempo.environments.retrievers import (
    Retriever,
    SearchResult,
    open_retriever,
    read_corpus,
)
from mempo.environments.world import Split, ToolError
from mempo.text import normalize_answer
from mempo.types import Passage, Question

T = TypeVar("T")
_BUILTIN = "builtin:"
_DATA = Path(__file__).parent / "data"
NOTHING_FOUND = "No passage found."


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
    return _join([questions[i] for i in order])


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


class DatasetWorld:
    """Questions from files, replies from a retriever. Implements `world.World`."""

    def __init__(self, settings: Environment, shorten: Callable[[str], str]) -> None:
        """Read the files and open the retriever (a search server is not called yet).

        Args:
            settings: which files, which retriever.
            shorten: cuts a passage's text to `settings.passage_tokens` tokens; the tokenizer's
                owner supplies it.

        Raises:
            ValueError: a file or address is missing or unusable; names the setting.
        """
        self._settings = settings
        self._shorten = shorten
        corpus = self._corpus()
        self.retriever: Retriever = open_retriever(settings, corpus)
        everything = self._read("questions")
        if settings.test_questions:
            train, test = everything, self._read("test_questions")
        else:
            train, test = split_questions(everything, settings.test_fraction)
        if settings.question_filter != "all":
            train, test = self._extractive(train, corpus), self._extractive(test, corpus)
        if settings.question_filter == "solved":
            train, test = self._solved(train, corpus), self._solved(test, corpus)
        self._pools: dict[Split, list[Question]] = {"train": train, "test": test}

    def pool(self, split: Split) -> list[Question]:
        """Every question of a split, in the order of the file."""
        return list(self._pools[split])

    def questions(
        self, split: Split, count: int, *, objectives: int, key: tuple[Key, ...]
    ) -> list[Question]:
        """`count` different questions with `objectives` objectives each, drawn by `key` alone.

        Rows that come with that many objectives are served as they are; where there are none,
        single questions are composed, every one of the split once before any is used again (but
        for a remainder too small to compose).

        Raises:
            ValueError: the split is too small; names the setting that asks for too much.
        """
        section = ("environment", "rollout") if split == "train" else ("evaluate", "evaluate")
        pool, k = self._pools[split], 1
        ready = [q for q in pool if q.objectives == objectives]
        if not ready and objectives > 1:
            ready, k = [q for q in pool if q.objectives == 1], objectives
        if len(ready) < k or not ready:
            raise ValueError(
                f"{section[0]}.objectives asks for {objectives} objectives, but the {split} split "
                f"has {len(ready)} single questions to compose and none with {objectives}; lower "
                "it or give more questions"
            )
        if count > comb(len(ready), k):
            raise ValueError(
                f"{section[1]}.questions asks for {count} questions with {objectives} objectives, "
                f"but the {split} split has only {comb(len(ready), k)}; lower it or give more "
                "questions"
            )
        draw = generator(*key)
        drawn: dict[frozenset[int], Question] = {}
        while len(drawn) < count:
            # One pass deals every question out once; the next pass shuffles anew.
            order = [int(i) for i in draw.permutation(len(ready))]
            for start in range(0, len(order) - k + 1, k):
                hand = order[start : start + k]
                if len(drawn) < count:
                    drawn.setdefault(frozenset(hand), _join([ready[i] for i in hand]))
        return list(drawn.values())

    def reply(self, questions: Sequence[Question], queries: Sequence[str]) -> list[str | ToolError]:
        r"""Search results per query, `[1] Title: text\n[2] ...`, or that call's `ToolError`.

        All queries go to the retriever in one call; blank ones are answered without it. A search
        depends on the query alone, so `questions` is not looked at.
        """
        asked = [i for i, query in enumerate(queries) if query.strip()]
        found = self._search([queries[i].strip() for i in asked])
        replies: list[str | ToolError] = [NOTHING_FOUND] * len(queries)
        for i, result in zip(asked, found, strict=True):
            replies[i] = result if isinstance(result, ToolError) else self._format(result)
        return replies

    def max_steps(self, question: Question) -> int:
        """16, MemPO's limit, or two more than there are objectives."""
        return max(16, question.objectives + 2)

    def check(self) -> None:
        """Raise a ValueError naming the setting if the retriever cannot be used."""
        self.retriever.check()

    def _search(self, queries: list[str]) -> list[SearchResult]:
        if not queries:
            return []
        try:
            return self.retriever.search(queries, self._settings.top_k)
        except Exception as error:  # a retriever of the user's own may raise anything
            if len(queries) == 1:
                return [ToolError(f"search failed ({type(error).__name__}: {error})")]
            return [result for query in queries for result in self._search([query])]

    def _format(self, passages: Sequence[Passage]) -> str:
        lines = []
        for number, passage in enumerate(passages, start=1):
            # One passage a line, so that a line break inside one cannot look like the next.
            text = " ".join(self._shorten(passage.text).split())
            lines.append(
                f"[{number}] {passage.title}: {text}" if passage.title else f"[{number}] {text}"
            )
        return "\n".join(lines) or NOTHING_FOUND

    def _read(self, setting: str) -> list[Question]:
        name: str = getattr(self._settings, setting)
        if not name:
            raise ValueError(
                f"environment.{setting} is empty; name a question file (.jsonl or .parquet)"
            )
        return _naming(f"environment.{setting}", lambda: read_questions(name))

    def _corpus(self) -> list[Passage]:
        settings = self._settings
        if settings.retriever != "bm25" and settings.question_filter != "extractive":
            return []
        if not settings.corpus:
            raise ValueError(
                "environment.corpus is empty; name a file of passages (.jsonl), which "
                "environment.retriever 'bm25' and environment.question_filter 'extractive' need"
            )
        return _naming("environment.corpus", lambda: read_corpus(data_path(settings.corpus)))

    def _extractive(
        self, questions: Sequence[Question], corpus: Sequence[Passage]
    ) -> list[Question]:
        """The extractive ones, judged on passages cut as the policy will see them."""
        needed = {i for q in questions for ids in q.supporting_ids for i in ids}
        passages = {p.id: replace(p, text=self._shorten(p.text)) for p in corpus if p.id in needed}
        kept = [question for question in questions if is_extractive(question, passages)]
        if questions and not kept:
            raise ValueError(
                "environment.question_filter 'extractive' leaves no question; set it to 'all', or "
                "give questions with supporting_ids that are in environment.corpus"
            )
        return kept

    def _solved(self, questions: Sequence[Question], corpus: Sequence[Passage]) -> list[Question]:
        """Those that the scripted expert can answer with this retriever and passage length."""
        passages = {p.id: p for p in corpus}

        def search(query: str) -> list[Passage]:
            found = self.retriever.search([query], self._settings.top_k)[0]
            if isinstance(found, ToolError):
                raise ConnectionError(f"environment.retriever: {found}")
            return found

        kept = [
            q
            for q in questions
            if plan(q, search=search, passages=passages, shorten=self._shorten) is not None
        ]
        if questions and not kept:
            raise ValueError(
                "environment.question_filter 'solved' leaves no question: the scripted expert "
                "finds no answer; raise environment.top_k or environment.passage_tokens"
            )
        return kept


def _join(questions: Sequence[Question]) -> Question:
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


def _naming(setting: str, read: Callable[[], list[T]]) -> list[T]:
    """What `read` returns; its ValueError gets the setting that named the file."""
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error
