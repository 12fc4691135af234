"""The world of question files: composes several objectives, answers by a retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Literal, TypeVar

from mempo.config import Environment
from mempo.draws import Key, generator
from mempo.environments.corpus import read_corpus
from mempo.environments.datasets import (
    data_path,
    is_extractive,
    join,
    read_questions,
    split_questions,
)
from mempo.environments.hops import plan
from mempo.environments.retrievers import Retriever, SearchResult, open_retriever
from mempo.environments.world import Split, ToolError
from mempo.types import Passage, Question

T = TypeVar("T")
NOTHING_FOUND = "No passage found."


def named_questions(
    settings: Environment, setting: Literal["questions", "test_questions"]
) -> list[Question]:
    """All questions of the file that `environment.questions` (or `test_questions`) names.

    Raises:
        ValueError: no file is named or it cannot be used; names the setting.
    """
    name: str = getattr(settings, setting)
    if not name:
        raise ValueError(
            f"environment.{setting} is empty; name a question file (.jsonl or .parquet)"
        )
    return _naming(f"environment.{setting}", lambda: read_questions(name))


def named_corpus(settings: Environment, *, needed_by: str) -> list[Passage]:
    """All passages of the file that `environment.corpus` names; `needed_by` says what for.

    Raises:
        ValueError: no file is named or it cannot be used; names the setting.
    """
    if not settings.corpus:
        raise ValueError(
            f"environment.corpus is empty; name a file of passages (.jsonl): {needed_by} needs it"
        )
    return _naming("environment.corpus", lambda: read_corpus(data_path(settings.corpus)))


class DatasetWorld:
    """Questions from files, replies from a retriever. Implements `world.World`."""

    def __init__(self, settings: Environment, shorten: Callable[[str], str]) -> None:
        """Read the files and open the retriever; the filter 'solved' already searches with it.

        With `settings.tool` somebody else answers the calls, and only that filter needs one.

        Args:
            settings: which files, which retriever.
            shorten: cuts a passage's text to `settings.passage_tokens` tokens; the tokenizer's
                owner supplies it.

        Raises:
            ValueError: a file or address is missing or unusable; names the setting.
            ConnectionError: a search of the filter 'solved' failed.
        """
        self._settings = settings
        self._shorten = shorten
        searches = not settings.tool or settings.question_filter == "solved"
        corpus = self._corpus(searches)
        self.retriever: Retriever
        if searches:
            self.retriever = open_retriever(settings, corpus)
        everything = named_questions(settings, "questions")
        if settings.test_questions:
            train, test = everything, named_questions(settings, "test_questions")
        else:
            train, test = split_questions(everything, settings.test_fraction)
        if settings.question_filter != "all":
            train, test = self._extractive(train, corpus), self._extractive(test, corpus)
        if settings.question_filter == "solved":
            self.check()
            train, test = self._solved(train, corpus), self._solved(test, corpus)
        self._pools: dict[Split, list[Question]] = {"train": train, "test": test}

    @property
    def waits(self) -> bool:
        """Whether a server answers; an index in this process does so at once."""
        return self._settings.retriever != "bm25"

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
                    drawn.setdefault(frozenset(hand), join([ready[i] for i in hand]))
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

    def find(self, query: str) -> list[Passage]:
        """The top k passages of one query, for who works with questions; texts are not cut.

        Raises:
            ConnectionError: the search failed.
        """
        [found] = self.retriever.search([query], self._settings.top_k)
        if isinstance(found, ToolError):
            raise ConnectionError(f"environment.retriever_url: a search failed ({found})")
        return found

    def solved(
        self, questions: Iterable[Question], passages: Mapping[str, Passage]
    ) -> Iterator[Question]:
        """Those that the scripted expert can answer with this retriever and passage length.

        Args:
            questions: whose `supporting_ids` are given; the others are left out.
            passages: the supporting passages by id.
        """
        for question in questions:
            hops = plan(question, search=self.find, passages=passages, shorten=self._shorten)
            if hops is not None:
                yield question

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

    def _corpus(self, searches: bool) -> list[Passage]:
        settings = self._settings
        if settings.retriever == "bm25" and searches:
            return named_corpus(settings, needed_by="environment.retriever 'bm25'")
        if settings.question_filter != "all":
            filtering = f"environment.question_filter '{settings.question_filter}'"
            return named_corpus(settings, needed_by=filtering)
        return []

    def _extractive(
        self, questions: Sequence[Question], corpus: Sequence[Passage]
    ) -> list[Question]:
        """The extractive ones, judged on passages cut as the policy will see them."""
        needed = {i for q in questions for ids in q.supporting_ids for i in ids}
        passages = {p.id: replace(p, text=self._shorten(p.text)) for p in corpus if p.id in needed}
        kept = [question for question in questions if is_extractive(question, passages)]
        if questions and not kept:
            raise ValueError(
                f"environment.question_filter '{self._settings.question_filter}' leaves no "
                "question: none has an answer to copy; set it to 'all', or give questions with "
                "supporting_ids that are in environment.corpus"
            )
        return kept

    def _solved(self, questions: Sequence[Question], corpus: Sequence[Passage]) -> list[Question]:
        kept = list(self.solved(questions, {p.id: p for p in corpus}))
        if questions and not kept:
            raise ValueError(
                "environment.question_filter 'solved' leaves no question: the scripted expert "
                "finds no answer; raise environment.top_k or environment.passage_tokens"
            )
        return kept


def _naming(setting: str, read: Callable[[], list[T]]) -> list[T]:
    """What `read` returns; its ValueError gets the setting that named the file."""
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error
