"""Tables to measure, and reading the pages that the evaluation writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest

_VOID = frozenset({"img", "meta", "source"})  # of those that are used


class Page(HTMLParser):
    """Elements of a page in order; closing tags must fit, or reading fails."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}  # what stands directly in elements of a name
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data.strip())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Attributes of every element of that name which has these attributes."""
        found = (attrs for name, attrs in self.elements if name == tag)
        return [a for a in found if all(a.get(k) == v for k, v in attributes.items())]

    @property
    def text(self) -> str:
        """All that a reader sees, one blank between pieces; not in the page's order."""
        shown = (t for name, texts in self.texts.items() for t in texts if name not in _UNSEEN)
        return " ".join(shown)


_UNSEEN = frozenset({"script", "style"})


@pytest.fixture(scope="session")
def read_page() -> Callable[[str], Page]:
    """read_page(html): its elements and texts; fails where tags do not fit."""
    return Page


Task = dict[str, Any]


@pytest.fixture(scope="session")
def task() -> Callable[..., Task]:
    """task(method, seed, question, f1): the row of an evaluated task of two objectives, greedy."""
    return _task


def _task(method: str, seed: int, question: str, f1: float | None, **fields: Any) -> Task:
    rest = {"em": 0.0, "format": 1.0, "p_answer": float("nan"), "tt": 100, "pt": 50, "steps": 3}
    keys = {"mode": "greedy", "objectives": 2, "question_id": question}
    return {"method": method, "seed": seed, **keys, "f1": f1, **rest, **fields}


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    """table(row, row, ...)."""
    return _table


def _table(*rows: Task) -> pd.DataFrame:
    return pd.DataFrame(list(rows))


@pytest.fixture(scope="session")
def of_seed() -> Callable[[str, Sequence[Sequence[float]]], pd.DataFrame]:
    """of_seed(method, scores): scores[s][q] is the F1 of seed s at question q, a row each."""

    def of_seed(method: str, scores: Sequence[Sequence[float]]) -> pd.DataFrame:
        return _table(
            *(
                _task(method, s, f"q{q}", f1)
                for s, row in enumerate(scores)
                for q, f1 in enumerate(row)
            )
        )

    return of_seed
