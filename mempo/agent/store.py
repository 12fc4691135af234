"""An external memory in plain text: segments, and summaries that new segments are folded into.

A segment is a tool's reply under the call that brought it. Whenever `fold_every` segments are not
summed up yet, the summariser folds them into one summary: of each segment the sentence that says
most about its call. Segments stay, so detail is never lost; a summary costs fewer tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mempo.agent.protocol import STORE_KINDS
from mempo.agent.similarity import most_similar

Kind = Literal["segments", "summaries"]
KINDS: tuple[Kind, ...] = STORE_KINDS
NOTHING = "nothing"  # what a query that finds nothing is told

_SENTENCE = re.compile(r"\s+;\s+|(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Entry:
    """One thing the store holds; `keys` are the calls that its text answers."""

    kind: Kind
    keys: tuple[str, ...]
    text: str


def build(calls: Sequence[tuple[str, str]], *, fold_every: int) -> list[Entry]:
    """The store after these (call, reply) pairs, in their order: segments, then summaries."""
    segments = [Entry("segments", (call,), reply) for call, reply in calls]
    folds = [calls[i : i + fold_every] for i in range(0, len(calls), fold_every)]
    summaries = [
        Entry(
            "summaries",
            tuple(call for call, _ in fold),
            " ; ".join(summarise(call, reply) for call, reply in fold),
        )
        for fold in folds
        if len(fold) == fold_every
    ]
    return [*segments, *summaries]


def summarise(call: str, reply: str) -> str:
    """The sentence of `reply` that shares most words with `call`; of equals the first."""
    wanted = set(_WORD.findall(call.lower()))
    sentences = [s.strip() for s in _SENTENCE.split(reply) if s.strip()] or [reply.strip()]
    return max(sentences, key=lambda s: len(wanted & set(_WORD.findall(s.lower()))))


def outline(entries: Sequence[Entry]) -> str:
    """What the store holds, by kind and key, without the texts; "" where it is empty."""
    parts = []
    for kind in KINDS:
        keys = [key for entry in entries if entry.kind == kind for key in entry.keys]
        if keys:
            parts.append(f"{kind} {' ; '.join(keys)}")
    return " ; ".join(parts)


def parse_query(text: str) -> tuple[Kind | None, str]:
    """(kind, words) of a query `segments words` or `summaries words`; no kind: any entry."""
    first, _, rest = text.strip().partition(" ")
    for kind in KINDS:
        if first == kind:
            return kind, rest.strip()
    return None, text.strip()


def lookup(entries: Sequence[Entry], query: str, k: int, *, model: str = "") -> str:
    """The texts of the at most `k` entries most similar to the query, of the kind it asks for."""
    kind, words = parse_query(query)
    candidates = [e for e in entries if kind in (None, e.kind)]
    texts = [f"{' '.join(e.keys)} {e.text}" for e in candidates]
    found = most_similar(words, texts, k, model=model)
    return " ; ".join(candidates[i].text for i in found) or NOTHING
