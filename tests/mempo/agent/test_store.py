from __future__ import annotations

import pytest

from mempo.agent.store import NOTHING, Entry, build, lookup, outline, parse_query, summarise

CALLS = [
    ("capital of France", "Lyon is big. The capital of France is Paris. It rains."),
    ("river of Rome", "Rome has hills. The river of Rome is the Tiber."),
    ("colour of ice", "Ice is clear ; the colour of ice is blue ; ice is cold"),
]


def test_a_store_holds_every_reply_and_folds_them_as_they_fill_up() -> None:
    entries = build(CALLS, fold_every=2)
    assert [e.kind for e in entries] == ["segments"] * 3 + ["summaries"]
    assert [e.text for e in entries[:3]] == [reply for _, reply in CALLS]
    assert entries[3] == Entry(
        "summaries",
        ("capital of France", "river of Rome"),
        "The capital of France is Paris. ; The river of Rome is the Tiber.",
    )
    assert [e.kind for e in build(CALLS, fold_every=1)].count("summaries") == 3
    assert [e.kind for e in build(CALLS, fold_every=4)].count("summaries") == 0
    assert build([], fold_every=2) == []


def test_what_was_stored_stays_as_it_was_when_more_comes() -> None:
    before = build(CALLS[:2], fold_every=2)
    after = build(CALLS, fold_every=2)
    assert [e for e in after if e in before] == before


def test_a_summary_is_the_sentence_nearest_to_its_call() -> None:
    assert summarise("colour of ice", CALLS[2][1]) == "the colour of ice is blue"
    assert summarise("something else", "First. Second.") == "First."
    assert summarise("x", "") == ""


def test_the_outline_lists_keys_by_kind_and_no_text() -> None:
    assert outline(build(CALLS, fold_every=2)) == (
        "segments capital of France ; river of Rome ; colour of ice ; "
        "summaries capital of France ; river of Rome"
    )
    assert outline([]) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("segments river of Rome", ("segments", "river of Rome")),
        (" summaries  Rome ", ("summaries", "Rome")),
        ("river of Rome", (None, "river of Rome")),
        ("segments", ("segments", "")),
        ("", (None, "")),
    ],
)
def test_a_query_names_its_kind_first(text: str, expected: tuple[str | None, str]) -> None:
    assert parse_query(text) == expected


def test_a_query_gets_entries_of_the_kind_it_asks_for() -> None:
    entries = build(CALLS, fold_every=2)
    assert lookup(entries, "segments river Rome", 1) == CALLS[1][1]
    assert lookup(entries, "summaries river Rome", 1) == entries[3].text
    assert lookup(entries, "summaries colour ice", 1) == NOTHING  # not summed up yet
    assert lookup(entries, "segments quantum", 3) == NOTHING
    assert lookup([], "segments river", 1) == NOTHING
    assert lookup(entries, "ice", 1) == CALLS[2][1]  # no kind: any entry
