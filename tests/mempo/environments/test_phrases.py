import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.phrases import bare, content_words, find, fold, names, note, sentences

WORD = st.text("abcdeéñÖ12", min_size=1, max_size=6)
SENTENCE = st.lists(WORD, min_size=1, max_size=12)


def test_fold_drops_case_accents_and_punctuation():
    assert fold("Géza-von  BOLVÁRY!")[0] == " geza von bolvary "


@pytest.mark.parametrize(
    ("text", "phrase", "found"),
    [
        ("a film by Géza von Bolváry.", "geza von bolvary", "Géza von Bolváry"),
        ("Peter Holmes À Court's father", "Peter Holmes à Court", "Peter Holmes À Court"),
        ("the song Get Low (Remix)?", "Get Low (remix)", "Get Low (Remix)"),
        ("Romania", "Roma", None),
        ("anything", "", None),
        ("anything", "?!", None),
        ("", "x", None),
    ],
)
def test_find_returns_the_place_in_the_original_text(text, phrase, found):
    place = find(text, phrase)
    assert (text[slice(*place)] if place else None) == found


@given(SENTENCE, st.data())
def test_any_run_of_words_is_found(words, data):
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    text, phrase = ", ".join(words), " ".join(words[start:end])
    place = find(text, phrase.upper())
    assert place is not None
    assert fold(text[slice(*place)])[0] == fold(phrase)[0]


def test_bare_titles_keep_their_own_brackets():
    assert bare("Get Low (Dillon Francis and DJ Snake song)") == "Get Low"
    assert bare("(What's the Story)") == "(What's the Story)"


def test_abbreviations_and_initials_end_no_sentence():
    text = 'E. B. White was born on Dec. 11. He wrote for St. Nicholas! "Stuart Little" sold.'
    assert sentences(text) == [
        "E. B. White was born on Dec. 11.",
        "He wrote for St. Nicholas!",
        '"Stuart Little" sold.',
    ]


def test_names_are_capitalised_runs_and_the_longest_comes_first():
    text = "It was directed by Géza von Bolváry in Vienna"
    assert names(text) == ["Géza von Bolváry", "Vienna"]


def test_content_words_keep_order_and_spelling():
    text = "What is the date of death of Ken Wiwa's father, Ken?"
    assert content_words(text) == ["date", "death", "Ken", "Wiwa", "father"]


def test_a_note_is_the_sentence_up_to_the_phrase():
    text = "It is old. Get Low is a song by Dillon Francis and DJ Snake. It sold well."
    assert note("Get Low", text, "Dillon Francis") == "Get Low is a song by Dillon Francis"


def test_a_note_names_its_subject():
    text = "He was born in Beijing, China."
    assert note("Ai Weiwei", text, "Beijing") == "Ai Weiwei: He was born in Beijing"


def test_a_note_closes_the_bracket_that_it_cut_open():
    text = "Ken Wiwa (born 10 October 1941, died 10 November 1995) was a writer."
    assert note("Ken Wiwa", text, "10 October 1941") == "Ken Wiwa (born 10 October 1941)"


def test_a_note_finishes_the_noun_that_the_phrase_qualifies():
    text = "Iain Ballamy is a British composer and saxophonist."
    assert note("Iain Ballamy", text, "British") == "Iain Ballamy is a British composer"


def test_a_note_takes_the_sentence_that_is_about_the_question():
    text = "Adam Yauch ran a firm in New York. He was born in Brooklyn, New York."
    assert note("Adam Yauch", text, "New York", about="Where was the director born?") == (
        "Adam Yauch: He was born in Brooklyn, New York"
    )


def test_a_note_says_more_than_the_phrase_itself():
    text = "Hebron Academy is a small preparatory school for boys."
    assert note("Hebron Academy", text, "Hebron Academy") == (
        "Hebron Academy is a small preparatory school for boys"
    )


def test_a_phrase_with_a_full_stop_in_it_is_found():
    assert note("Ohio", "Ohio joined in Washington D. C. Later it grew.", "C. Later") == (
        "Ohio joined in Washington D. C. Later"
    )


def test_a_long_note_loses_brackets_first_and_then_clauses_in_front():
    text = "Ylenia Carrisi (born in 1970, missing since 1994) was a daughter of Albano Carrisi."
    assert note("Ylenia Carrisi", text, "Albano Carrisi", max_words=9) == (
        "Ylenia Carrisi was a daughter of Albano Carrisi"
    )
    text = "The film was shot in one week of May, and it was directed by Paul Aaron."
    assert note("In Love", text, "Paul Aaron", max_words=8) == (
        "In Love: ... and it was directed by Paul Aaron"
    )


def test_without_a_phrase_the_first_sentence_is_cut_at_a_clause():
    text = "Totkuh is a village in Fin District, Bandar Abbas County, Iran. It has a mill."
    assert note("Totkuh", text, max_words=9) == "Totkuh is a village in Fin District"
    assert note("Totkuh", text, max_words=5) == "Totkuh is a village"
    assert note("Empty", "") == "Empty"


@given(st.lists(SENTENCE, min_size=1, max_size=4), st.data(), st.integers(2, 12))
def test_a_note_always_holds_its_phrase(parts, data, max_words):
    words = data.draw(st.sampled_from(parts))
    start = data.draw(st.integers(0, len(words) - 1))
    phrase = " ".join(words[start : data.draw(st.integers(start + 1, len(words)))])
    text = ". ".join(" ".join(part).capitalize() for part in parts) + "."
    made = note("Title", text, phrase, max_words=max_words)
    assert find(made, phrase)
    assert not re.search(r"\s\s|\s$", made)
