import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.reward import (
    exact_match,
    f1,
    normalize_answer,
    score_answer,
    split_answer,
    trajectory_reward,
)
from mempo.config import Reward

WORD = st.sampled_from(
    ["the", "a", "an", "An", "paris", "Paris!", "rome", "1905", "ö", "'s", "yes"]
)
ANSWER = st.lists(WORD, max_size=6).map(" ".join)
EM, F1 = Reward(answer="em"), Reward(answer="f1")


def reward(answer: str, settings: Reward = EM, *, good: bool = True, em=1.0, f1=1.0) -> float:
    return trajectory_reward(all_well_formed=good, answer=answer, em=em, f1=f1, settings=settings)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("  The  Eiffel   Tower! ", "eiffel tower"),
        ("A.B.C.", "abc"),
        ("An apple a day, the day", "apple day day"),
        ("theory of another", "theory of another"),  # articles only as whole words
        ("Röntgen", "röntgen"),
        ("the-end", "theend"),  # punctuation goes first, as in SQuAD's script
        ("A", ""),
        ("!", ""),
        ("", ""),
    ],
)
def test_normalisation_is_squads(text, normalized):
    assert normalize_answer(text) == normalized


@given(st.text(max_size=30))
def test_normalisation_agrees_with_squads_four_steps(text):
    lowered = text.lower()
    bare = "".join(character for character in lowered if character not in string.punctuation)
    without_articles = re.sub(r"\b(a|an|the)\b", " ", bare)
    assert normalize_answer(text) == " ".join(without_articles.split())


@given(ANSWER)
def test_normalised_text_stays_as_it_is(text):
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


def test_the_best_alias_counts():
    golds = ["New York City", "NYC", "the Big Apple"]
    assert exact_match("big apple", golds) == 1.0
    assert exact_match("New York", golds) == 0.0
    # Against "New York City": P = 2/2, R = 2/3, F1 = 0.8.
    assert f1("New York", golds) == pytest.approx(0.8)


def test_a_lone_string_is_one_alias_and_no_alias_is_never_right():
    assert exact_match("paris", "Paris") == 1.0
    assert f1("paris", "Paris") == 1.0
    assert exact_match("paris", []) == f1("paris", []) == 0.0


def test_words_count_as_often_as_both_have_them():
    # Common: new twice, york once; 4 and 3 words: 2 * 3 / 7.
    assert f1("new new york york", ["new york new"]) == pytest.approx(6 / 7)


@given(ANSWER, ANSWER)
def test_f1_agrees_with_precision_and_recall(prediction, gold):
    said, right = normalize_answer(prediction).split(), normalize_answer(gold).split()
    common = sum((Counter(said) & Counter(right)).values())
    closed = {" ".join(said), " ".join(right)} & {"yes", "no", "noanswer"}
    if not said or not right or closed:
        assert f1(prediction, [gold]) == exact_match(prediction, [gold])
    elif not common:
        assert f1(prediction, [gold]) == 0.0
    else:
        precision, recall = common / len(said), common / len(right)
        expected = 2 * precision * recall / (precision + recall)
        assert f1(prediction, [gold]) == pytest.approx(expected)


@given(ANSWER, st.lists(ANSWER, max_size=3))
def test_exact_match_never_exceeds_f1(prediction, golds):
    assert exact_match(prediction, golds) <= f1(prediction, golds) <= 1.0


def test_fault_21_empty_answers_are_worth_nothing():
    assert exact_match("", ["Paris"]) == f1("", ["Paris"]) == 0.0
    assert exact_match("", [""]) == f1("", [""]) == 1.0
    assert exact_match("", ["x"]) == f1("", ["x"]) == 0.0
    assert exact_match("x", [""]) == f1("x", [""]) == 0.0


@pytest.mark.parametrize("nothing", ["", " ", "\n\t"])
def test_fault_21_an_empty_text_is_not_right_where_the_gold_normalises_to_nothing(nothing):
    assert exact_match(nothing, ["A"]) == f1(nothing, ["A"]) == 0.0
    assert exact_match("A", [nothing]) == f1("A", [nothing]) == 0.0
    assert exact_match("a", ["A"]) == f1("a", ["A"]) == 1.0


def test_fault_21_naming_two_is_not_exact_and_half_right():
    # P = 1/3 (paris, or, rome), R = 1: F1 = 2 * 1 / (3 + 1).
    assert exact_match("Paris or Rome", ["Paris"]) == 0.0
    assert f1("Paris or Rome", ["Paris"]) == 0.5


@pytest.mark.parametrize("closed", ["yes", "no", "noanswer"])
def test_fault_21_yes_and_no_are_never_partly_right(closed):
    assert f1(f"{closed} it is", [closed]) == 0.0
    assert f1(closed, [f"{closed} it is"]) == 0.0
    assert f1(f"{closed.capitalize()}.", [closed]) == 1.0
    # HotpotQA's rule looks at a whole answer: the word inside a longer one is a word.
    assert f1(f"{closed} it is", [f"{closed} it was"]) == pytest.approx(2 / 3)


def test_answers_are_split_at_semicolons():
    assert split_answer(" Paris ; Rome;1905 ", 3) == ["Paris", "Rome", "1905"]
    assert split_answer("Paris", 3) == ["Paris", "", ""]
    assert split_answer("", 2) == ["", ""]


def test_a_single_answer_is_never_cut_and_the_last_piece_keeps_the_rest():
    assert split_answer("Steins;Gate", 1) == ["Steins;Gate"]
    assert split_answer("a; b; c", 2) == ["a", "b; c"]


def test_an_answer_to_no_objective_is_refused():
    with pytest.raises(ValueError, match="objectives must be at least 1, not 0"):
        split_answer("x", 0)


@given(st.lists(st.text("abc .", max_size=5), min_size=1, max_size=6))
def test_joined_answers_are_found_again(pieces):
    stripped = [piece.strip() for piece in pieces]
    assert split_answer("; ".join(pieces), len(pieces)) == stripped


def test_scores_are_means_over_objectives():
    golds = [["Paris"], ["New York City", "NYC"], ["yes"], ["1905"]]
    # EM 1, 0, 0, 0; F1 1, 0.8, 0, 0.
    em, word_f1 = score_answer("paris; New York; yes it is", golds)
    assert em == pytest.approx(1 / 4)
    assert word_f1 == pytest.approx((1 + 0.8) / 4)


def test_answers_in_the_wrong_order_are_wrong():
    assert score_answer("Rome; Paris", [["Paris"], ["Rome"]]) == (0.0, 0.0)


def test_listing_candidates_in_the_last_piece_is_not_exact():
    em, word_f1 = score_answer("Paris; Rome; Oslo", [["Paris"], ["Rome"]])
    assert em == 0.5
    assert word_f1 == pytest.approx((1 + 2 / 3) / 2)


@given(
    st.lists(st.tuples(ANSWER, st.lists(ANSWER, min_size=1, max_size=3)), min_size=1, max_size=5)
)
def test_a_whole_answer_scores_the_mean_of_its_pieces(pairs):
    answer, golds = "; ".join(said for said, _ in pairs), [aliases for _, aliases in pairs]
    em, word_f1 = score_answer(answer, golds)
    assert em == pytest.approx(sum(exact_match(s, g) for s, g in pairs) / len(pairs))
    assert word_f1 == pytest.approx(sum(f1(s, g) for s, g in pairs) / len(pairs))


def test_the_reward_is_the_chosen_score():
    assert reward("Paris", EM, em=0.25, f1=0.75) == 0.25
    assert reward("Paris", F1, em=0.25, f1=0.75) == 0.75


def test_one_malformed_step_costs_the_whole_reward():
    bonus = Reward(answer="em", format_bonus=0.1)
    assert reward("Paris", bonus, good=False) == 0.0


def test_a_wrong_answer_in_right_format_gets_the_bonus_alone():
    bonus = Reward(answer="f1", format_bonus=0.1)
    assert reward("Rome", bonus, em=0.0, f1=0.0) == pytest.approx(0.1)
    assert reward("Paris", bonus, em=0.0, f1=0.5) == pytest.approx(0.6)


def test_fault_23_doing_nothing_never_earns_more_than_a_wrong_format():
    bonus = Reward(answer="em", format_bonus=0.1)
    wrong_format = reward("Paris", bonus, good=False)
    for nothing in ("", "  ", "\n"):
        # Even against a gold that is empty as written, where exact match is 1.
        assert reward(nothing, bonus, good=True) <= wrong_format


@pytest.mark.parametrize("empty", ["", ";", "; ;", "...", "-", " ; . "])
def test_fault_23_a_format_bonus_needs_an_answer_that_says_something(empty):
    bonus = Reward(answer="em", format_bonus=0.1)
    assert reward(empty, bonus, em=0.0, f1=0.0) == 0.0


@given(
    ANSWER,
    st.booleans(),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["em", "f1"]),
    st.floats(0, 1),
)
def test_fault_23_nothing_earns_less_than_doing_nothing(answer, good, em, f1, score, bonus):
    settings = Reward(answer=score, format_bonus=bonus)
    assert reward("", settings) == 0.0
    earned = reward(answer, settings, good=good, em=em, f1=f1)
    assert 0.0 <= earned <= 1.0 + bonus
