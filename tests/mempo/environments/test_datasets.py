import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.datasets import (
    compose,
    data_path,
    is_extractive,
    read_questions,
    split_questions,
)
from mempo.types import Passage, Question

FORMATS = Path(__file__).parents[2] / "data" / "formats"
BUILTIN = "builtin:wiki_multihop/questions.jsonl"
CAPITAL = Question(
    "a", "Capital?", 1, [["Paris", "Lutetia"]], ("Capital?",), (("p1", "p2"),), source="nq"
)
RIVER = Question("b", "River?", 1, [["Seine"]], ("River?",), (("p3",),), source="hotpotqa")
BRIDGE = Question("c", "Bridge?", 1, [["Pont Neuf"]], ("Bridge?",), source="nq")


def many(n: int) -> list[Question]:
    return [Question(f"q{i}", f"Number {i}?", 1, [[str(i)]]) for i in range(n)]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- files


def test_a_plain_name_is_a_path_and_builtin_names_the_packages_own_data():
    assert data_path("some/file.jsonl") == Path("some/file.jsonl")
    file = data_path(BUILTIN)
    assert file.is_file()
    assert file.parts[-2:] == ("wiki_multihop", "questions.jsonl")


def test_fault_51_a_missing_builtin_file_is_answered_with_those_there_are():
    with pytest.raises(ValueError) as error:
        data_path("builtin:wiki/none.jsonl")
    assert str(error.value) == (
        "builtin:wiki/none.jsonl: no such built-in file; there are "
        "builtin:wiki_multihop/corpus.jsonl, builtin:wiki_multihop/questions.jsonl"
    )


def test_the_builtin_questions_are_read_whole():
    questions = read_questions(BUILTIN)
    assert len({q.id for q in questions}) == len(questions) == 700
    counts = {s: sum(q.source == s for q in questions) for s in {q.source for q in questions}}
    assert counts == {"2wikimultihopqa": 500, "hotpotqa": 100, "musique": 100}
    assert questions[0].id == "2wikimultihopqa_train_0"
    assert questions[0].answers == [["October 5, 1987"]]
    assert questions[0].supporting_ids == (("a766574019", "1bf074f907"),)


@pytest.mark.parametrize(
    ("name", "rows", "objectives"),
    [
        ("search_r1", 24, {1}),
        ("mem1_multi", 12, {2, 4, 8}),
        ("memagent", 12, {1}),
        ("memact_multi", 16, None),
        ("deepresearcher", 20, {1}),
    ],
)
def test_every_layout_of_the_field_is_read(name, rows, objectives):
    questions = read_questions(FORMATS / f"{name}.parquet")
    assert len({q.id for q in questions}) == len(questions) == rows
    assert objectives is None or {q.objectives for q in questions} == objectives
    assert all(q.objectives == len(q.answers) for q in questions)


def test_questions_keep_the_order_of_the_file_and_get_its_name(tmp_path):
    rows = [{"question": f"{n}?", "golden_answers": ["x"]} for n in range(3)]
    questions = read_questions(write(tmp_path / "mine.jsonl", rows))
    assert [q.id for q in questions] == ["mine_1", "mine_2", "mine_3"]
    assert [q.text for q in questions] == ["0?", "1?", "2?"]
    assert read_questions(str(tmp_path / "mine.jsonl")) == questions


def test_an_id_that_occurs_twice_is_made_unique_by_its_row(tmp_path):
    rows = [{"id": "a", "question": f"{n}?", "golden_answers": ["x"]} for n in range(3)]
    questions = read_questions(write(tmp_path / "mine.jsonl", rows))
    assert [q.id for q in questions] == ["a", "a#2", "a#3"]


def test_fault_51_a_bad_row_is_named_with_its_file_and_number(tmp_path):
    rows = [{"question": "a?", "golden_answers": ["x"]}, {"question": "b?", "golden_answers": []}]
    file = write(tmp_path / "mine.jsonl", rows)
    with pytest.raises(ValueError) as error:
        read_questions(file)
    assert str(error.value).startswith(f"{file}, row 2: no answers; give them in ")
    assert "\n" not in str(error.value)


# --- the split


def test_the_split_is_a_partition_in_the_order_of_the_file():
    questions = read_questions(BUILTIN)
    train, test = split_questions(questions, 0.2)
    assert [q for q in questions if q in train] == train
    assert [q for q in questions if q in test] == test
    assert sorted(q.id for q in [*train, *test]) == sorted(q.id for q in questions)
    # Binomial(700, 0.2): mean 140, standard deviation 10.6.
    assert 140 - 4 * 10.6 < len(test) < 140 + 4 * 10.6


def test_the_split_does_not_change_between_versions():
    # Of q0 to q29 those whose `b2sum --length 64` lies below a fifth of its range.
    _, test = split_questions(many(30), 0.2)
    assert [q.id for q in test] == ["q0", "q4", "q6", "q9", "q10", "q13", "q17", "q25"]


@given(st.sets(st.integers(0, 10_000), max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_question_keeps_its_side_whatever_else_is_there(numbers, one, two):
    low, high = min(one, two), max(one, two)
    questions = [Question(f"q{i}", "?", 1, [["x"]]) for i in numbers]
    train, test = split_questions(questions, low)
    alone = [split_questions([q], low) for q in questions]
    assert train == [q for side, _ in alone for q in side]
    assert test == [q for _, side in alone for q in side]
    # A larger share only adds to the test side.
    assert {q.id for q in test} <= {q.id for q in split_questions(questions, high)[1]}


def test_shares_of_none_and_all():
    questions = many(50)
    assert split_questions(questions, 0.0) == (questions, [])
    assert split_questions(questions, 1.0) == ([], questions)
    assert split_questions([], 0.5) == ([], [])


# --- several objectives in one question


def test_composition_joins_everything_in_one_order():
    joined = compose([CAPITAL, RIVER], 2, ("seed", 0))
    first, second = (CAPITAL, RIVER) if joined.id == "a+b" else (RIVER, CAPITAL)
    assert joined == Question(
        id=f"{first.id}+{second.id}",
        text=f"{first.text}; {second.text}",
        objectives=2,
        answers=[*first.answers, *second.answers],
        parts=(first.text, second.text),
        supporting_ids=(*first.supporting_ids, *second.supporting_ids),
        source=f"{first.source}+{second.source}",
    )


def test_both_orders_are_drawn():
    orders = {compose([CAPITAL, RIVER], 2, (n,)).id for n in range(20)}
    assert orders == {"a+b", "b+a"}


def test_a_composed_question_takes_what_its_parts_know():
    joined = compose([CAPITAL, BRIDGE], 2, (0,))
    known = {"a": ("p1", "p2"), "c": ()}
    assert joined.supporting_ids == tuple(known[i] for i in joined.id.split("+"))
    assert joined.source == "nq"  # named once
    nobody = compose([BRIDGE, replace(BRIDGE, id="d")], 2, (0,))
    assert nobody.supporting_ids == ()


def test_multi_objective_rows_can_be_composed_too():
    pair = Question("p", "Who; what?; Where?", 2, [["x"], ["y"]])  # parts unknown
    joined = compose([pair, CAPITAL], 2, (0,))
    assert joined.objectives == len(joined.answers) == 3
    assert joined.parts == ()
    assert joined.supporting_ids in ((("p1", "p2"), (), ()), ((), (), ("p1", "p2")))


def test_one_question_stays_itself():
    assert compose([CAPITAL], 1, (0,)) is CAPITAL


@given(st.integers(1, 8), st.integers(0, 99))
def test_a_composition_has_different_questions_and_depends_on_its_key_alone(k, key):
    questions = many(8)
    joined = compose(questions, k, ("compose", key))
    assert len(set(joined.id.split("+"))) == joined.objectives == k
    assert joined == compose(questions, k, ("compose", key))
    assert [[i.removeprefix("q")] for i in joined.id.split("+")] == joined.answers


@pytest.mark.parametrize("k", [0, 3])
def test_fault_51_more_objectives_than_questions_are_refused(k):
    with pytest.raises(ValueError, match=f"cannot compose {k} objectives from 2 questions"):
        compose([CAPITAL, RIVER], k, (0,))


# --- extractive questions

PASSAGES = {
    "p1": Passage("p1", "France", "The capital, Paris, is old."),
    "p2": Passage("p2", "Lutetia", "A Roman town."),
    "p3": Passage("p3", "Rivers", "The Seineur is no river; the Loire is."),
}


@pytest.mark.parametrize(
    ("question", "extractive"),
    [
        (CAPITAL, True),
        (replace(CAPITAL, answers=[["the PARIS!"]]), True),  # normalised
        (replace(CAPITAL, answers=[["Rome", "Lutetia"]]), True),  # any alias; titles count
        (replace(CAPITAL, answers=[["Par"]]), False),  # whole words only
        (replace(CAPITAL, answers=[["yes"]]), False),
        (replace(CAPITAL, answers=[["Paris", "no"]]), False),
        (replace(CAPITAL, text="Paris or Rome?", parts=("Paris or Rome?",)), False),  # a choice
        (RIVER, False),  # "Seineur" is another word
        (replace(CAPITAL, supporting_ids=(("p9",),)), False),  # not in the corpus
        (BRIDGE, False),  # nobody says where the answer stands
        (replace(CAPITAL, answers=[["A"]]), False),  # normalises to nothing
    ],
)
def test_extractive_answers_can_be_copied_from_a_passage_and_only_from_there(question, extractive):
    assert is_extractive(question, PASSAGES) is extractive


def test_every_objective_has_to_be_extractive():
    loire = replace(RIVER, answers=[["Loire"]])
    for other, extractive in ((loire, True), (RIVER, False)):
        both = compose([CAPITAL, other], 2, (0,))
        assert is_extractive(both, PASSAGES) is extractive


def test_a_choice_is_looked_for_in_the_objectives_own_part():
    # "Loire" stands in the other question, which is no choice for this one.
    asked = replace(CAPITAL, text="Has the Loire a capital?", parts=("Has the Loire a capital?",))
    both = compose([asked, replace(RIVER, answers=[["Loire"]])], 2, (0,))
    assert is_extractive(both, PASSAGES)
