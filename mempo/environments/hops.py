"""Plans for multi-hop questions: which searches find the passages that answer them.

A plan knows the supporting passages and orders them as a person would come by them: first what
the question names, then what the last reply brought up. Every query copies words from the
question or from the last reply, and every fact is a cut sentence of a reply, so that each word
can be copied from what the policy sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from mempo.environments.phrases import bare, content_words, find, fold, names, note
from mempo.types import Passage, Question

_MAX_QUERY_WORDS = 12
_MAX_HOPS = 5  # all orders of the passages are tried: 5! = 120

Search = Callable[[str], list[Passage]]
Shorten = Callable[[str], str]


@dataclass(frozen=True)
class Hop:
    """One search of a plan: what is asked, what comes back, what is worth keeping."""

    name: str  # what is looked up, as the question or the last reply names it; "" without a name
    query: str
    found: tuple[Passage, ...]  # best first, texts cut as the policy sees them
    passage: Passage  # the supporting one among `found`
    fact: str
    answer: str  # the gold alias that `fact` carries; "" where it only leads on or compares


def plan(
    question: Question, *, search: Search, passages: Mapping[str, Passage], shorten: Shorten
) -> list[list[Hop]] | None:
    """The searches that answer `question`: for each objective its hops, in order.

    Args:
        question: with `supporting_ids`; `parts` where it has several objectives.
        search: the top k passages of a query, as the world's retriever returns them.
        passages: the supporting passages by id.
        shorten: cuts a passage's text as the world does.

    Returns:
        None where the expert cannot answer: a supporting passage is unknown or not among the
        top k for any of its queries, an answer that can be copied is cut off, or an objective
        has no supporting passages or more than 5.
    """
    parts = question.parts or (question.text,) * question.objectives
    if len(question.supporting_ids) != question.objectives:
        return None
    planned: list[list[Hop]] = []
    for part, aliases, ids in zip(parts, question.answers, question.supporting_ids, strict=True):
        if not 1 <= len(ids) <= _MAX_HOPS or any(i not in passages for i in ids):
            return None
        support = [_cut(passages[i], shorten) for i in ids]
        extractive = _is_copied(aliases, part, [passages[i] for i in ids])
        targets = aliases if extractive else []
        if extractive and not any(_first_found(p.text, aliases) for p in support):
            return None
        hops = _hops(part, targets, support, search, shorten)
        if hops is None:
            return None
        planned.append(hops)
    return planned


def _hops(
    part: str, targets: Sequence[str], support: Sequence[Passage], search: Search, shorten: Shorten
) -> list[Hop] | None:
    """The first order of the passages, the most natural first, in which each can be found."""
    replies: dict[str, tuple[Passage, ...]] = {}

    def found(query: str) -> tuple[Passage, ...]:
        if query not in replies:
            replies[query] = tuple(_cut(passage, shorten) for passage in search(query))
        return replies[query]

    orders = sorted(permutations(support), key=lambda order: -_naturalness(order, part, targets))
    for order in orders:
        hops = _follow(order, part, targets, found)
        if hops is not None:
            return hops
    return None


def _follow(
    order: Sequence[Passage],
    part: str,
    targets: Sequence[str],
    found: Callable[[str], tuple[Passage, ...]],
) -> list[Hop] | None:
    """The hops of one order of passages, or None where one of them is not found."""
    looked_up: list[tuple[str, str]] = []  # (name, query)
    for i, passage in enumerate(order):
        before = order[i - 1] if i else None
        asked = {query for _, query in looked_up}
        for name, query in _queries(passage, before, part):
            if query not in asked and any(p.id == passage.id for p in found(query)):
                looked_up.append((name, query))
                break
        else:
            return None
    answering = max((i for i, p in enumerate(order) if _first_found(p.text, targets)), default=-1)
    hops: list[Hop] = []
    for i, (passage, (name, query)) in enumerate(zip(order, looked_up, strict=True)):
        onward = looked_up[i + 1][0] if i + 1 < len(order) else ""
        phrase = _first_found(passage.text, targets) if i == answering else onward
        fact = note(passage.title, passage.text, phrase, about=part)
        hops.append(Hop(name, query, found(query), passage, fact, phrase if i == answering else ""))
    return hops


def _naturalness(order: Sequence[Passage], part: str, targets: Sequence[str]) -> float:
    """How well the question leads to the first passage, and each passage to the next."""
    score = 0.0
    for i, passage in enumerate(order):
        place = find(part, bare(passage.title))
        if place:  # of several that the question names, the first comes first
            score += 2.5 - 0.001 * place[0] * (len(order) - i)
        if i and find(order[i - 1].text, bare(passage.title)):
            score += 3.0
        elif i and _links(order[i - 1], passage, part):
            score += 1.0
        elif not i and not place:
            score += _overlap(passage.title, part)
    return score + (2.0 if _first_found(order[-1].text, targets) else 0.0)


def _queries(passage: Passage, before: Passage | None, part: str) -> list[tuple[str, str]]:
    """(name, query) pairs that could find `passage`, the most natural first."""
    named = [part[slice(*p)] for t in (passage.title, bare(passage.title)) if (p := find(part, t))]
    queries = [(name, name) for name in named]
    relation = content_words(part)
    if before is not None and not named:
        for link in _links(before, passage, part):
            known = set(fold(f"{link} {before.title}")[0].split())
            rest = [w for w in relation if not set(fold(w)[0].split()) & known]
            queries += [(link, link), (link, " ".join([link, *rest[:4]]))]
    in_question = [name for name in names(part) if find(f"{passage.title} {passage.text}", name)]
    queries += [(name, name) for name in in_question]
    everything = " ".join(relation[:_MAX_QUERY_WORDS])
    queries.append(("", everything))
    return queries


def _links(before: Passage, passage: Passage, part: str) -> list[str]:
    """Phrases in the text of `before` that lead to `passage`, the most telling first."""
    title = bare(passage.title)
    links = [
        before.text[slice(*p)] for t in (title, title.split(",")[0]) if (p := find(before.text, t))
    ]
    new = [
        name
        for name in names(before.text)
        if not find(part, name)
        and not find(before.title, name)
        and not _qualifies(before.text, name)
    ]
    links += [name for name in new if find(passage.title, name)]
    links += [name for name in new if find(passage.text, name)]
    return list(dict.fromkeys(links))


def _qualifies(text: str, name: str) -> bool:
    """Whether a single name is only an adjective or a date, as in `a Danish actor`, `3 June`."""
    return bool(
        re.search(rf"\b(?:an?|\d+)\s+{re.escape(name)}\b|\b{re.escape(name)}\s+\d+\b", text)
    )


def _overlap(title: str, part: str) -> float:
    """Share of the title's words that the question has."""
    words = content_words(title) or [title]
    return sum(find(part, word) is not None for word in words) / len(words)


def _is_copied(aliases: Sequence[str], part: str, support: Sequence[Passage]) -> bool:
    """Whether the answer is a phrase of a passage, neither yes/no nor a choice in the question."""
    if any(fold(alias)[0].strip() in ("yes", "no") or find(part, alias) for alias in aliases):
        return False
    return any(_first_found(passage.text, aliases) for passage in support)


def _first_found(text: str, phrases: Sequence[str]) -> str:
    """The first of `phrases` that stands in `text`, or ""."""
    return next((phrase for phrase in phrases if find(text, phrase)), "")


def _cut(passage: Passage, shorten: Shorten) -> Passage:
    return Passage(passage.id, passage.title, " ".join(shorten(passage.text).split()))
