import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.environments.formats import COLUMNS, parse_row, read_rows
from mempo.types import Question

FORMATS = Path(__file__).parents[2] / "data" / "formats"
TEXT = st.text("abcXYZ é;?.", min_size=1, max_size=12).filter(lambda t: bool(t.strip()))


def raw(name: str) -> list[dict[str, Any]]:
    return pq.read_table(FORMATS / f"{name}.parquet").to_pylist()


def parsed(name: str) -> list[Question]:
    return [parse_row(row, f"row_{n}") for n, row in read_rows(FORMATS / f"{name}.parquet")]


def truth(value: Any, **row: Any) -> dict[str, Any]:
    return {"question": "Who?", "reward_model": {"ground_truth": value}, **row}


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


# --- the files that the projects write


def test_search_r1_rows_have_one_objective_with_aliases():
    rows, questions = raw("search_r1"), parsed("search_r1")
    assert len(questions) == 24
    for row, question in zip(rows, questions, strict=True):
        assert question.id == row["id"]
        assert question.text == row["question"]
        assert question.parts == (row["question"],)
        assert question.answers == [row["reward_model"]["ground_truth"]["target"]]
        assert (question.objectives, question.source) == (1, "nq")
    assert questions[0].answers == [["Wilhelm Conrad Röntgen"]]
    assert questions[-1].answers == [
        ["pituitary gland", "the temporal lobes", "the pituitary gland", "temporal lobes"]
    ]


def test_search_r1_prompts_give_the_same_text_as_the_question_column():
    for row in raw("search_r1"):
        prompt_only = {"prompt": row["prompt"], "reward_model": row["reward_model"]}
        assert parse_row(prompt_only, "x").text == row["question"]


def test_mem1_rows_have_as_many_objectives_as_targets():
    questions = parsed("mem1_multi")
    assert {q.objectives for q in questions} == {2, 4, 8}
    for row, question in zip(raw("mem1_multi"), questions, strict=True):
        assert question.answers == row["reward_model"]["ground_truth"]["target"]
        assert "; ".join(question.parts) == question.text
        assert len(question.parts) == question.objectives
        assert row["prompt"][-1]["content"].strip().endswith(question.text)
    assert questions[0].text == (
        "If Gallu is a demon Lilu is what?; "
        "Are Christopher Nolan and Sathish Kalathil both film directors?"
    )
    assert questions[0].gold == "a spirit; yes"


def test_memagent_rows_take_text_and_aliases_from_their_own_places():
    for row, question in zip(raw("memagent"), parsed("memagent"), strict=True):
        assert question.text == row["extra_info"]["question"]
        assert question.answers == [row["reward_model"]["ground_truth"]]
    # `extra_info.index` is a bare number here: no name outside of its file.
    assert parsed("memagent")[0].id == "row_1"


def test_memact_rows_lose_the_instructions_around_their_questions():
    questions = parsed("memact_multi")
    for row, question in zip(raw("memact_multi"), questions, strict=True):
        keyed = json.loads(row["reward_model"]["ground_truth"])
        assert question.answers == [[answer] for answer in keyed.values()]
        lines = re.findall(r"Q\d+: (.*)", row["prompt"][-1]["content"])
        assert list(question.parts) == lines
        assert question.text == "; ".join(lines)
    assert questions[0].parts == (
        "Mrs Grose and Miss Jessel appear in which novella by Henry James?",
        "Chibuku Shake Shake is a beer based on a traditional beer style commonly found in what "
        "country?",
    )
    assert questions[0].answers == [["turn of screw"], ["South Africa"]]


def test_deepresearcher_rows_split_their_aliases_and_keep_their_ids():
    rows, questions = raw("deepresearcher"), parsed("deepresearcher")
    for row, question in zip(rows, questions, strict=True):
        aliases = row["reward_model"]["ground_truth"].split("<|answer_split|>")
        assert question.answers == [list(dict.fromkeys(a.strip() for a in aliases))]
        assert question.id == row["extra_info"]["index"]
        assert question.text == row["prompt"][0]["content"].strip()
    assert questions[-1].answers == [["A'ja Wilson", "Jalen Brunson"]]
    assert {q.source for q in questions} == {row["data_source"] for row in rows}


@pytest.mark.parametrize("file", sorted(FORMATS.glob("*.parquet")), ids=lambda f: f.stem)
def test_every_layout_gives_texts_without_instructions_and_answers(file):
    for number, row in read_rows(file):
        question = parse_row(row, f"row_{number}")
        assert question.text == question.text.strip() != ""
        assert not re.search(r"</?answer>|Answer the following|FINAL_ANSWER", question.text)
        assert len(question.answers) == question.objectives >= 1
        assert all(alias.strip() == alias != "" for a in question.answers for alias in a)


# --- where the text comes from


def test_the_question_column_goes_before_extra_info_and_the_prompt():
    row = truth("x", extra_info={"question": "from extra?"}, prompt=user("from prompt?"))
    assert parse_row(row, "q").text == "Who?"
    assert parse_row(row | {"question": "  "}, "q").text == "from extra?"
    assert parse_row(row | {"question": None, "extra_info": None}, "q").text == "from prompt?"


def test_the_last_user_message_asks():
    chat = [
        *user("Hello?"),
        {"role": "assistant", "content": "Yes?"},
        *user(" Who is it? "),
        {"role": "assistant", "content": "me"},
    ]
    row = {"prompt": chat, "golden_answers": ["x"]}
    assert parse_row(row, "q").text == "Who is it?"
    assert parse_row({"prompt": "Who?", "golden_answers": ["x"]}, "q").text == "Who?"


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"question": " "},
        {"question": 7},
        {"prompt": []},
        {"prompt": [{"role": "system", "content": "You search."}]},
        {"extra_info": {"index": 3}},
    ],
)
def test_a_row_without_text_is_refused(row):
    with pytest.raises(ValueError, match="no question text; give it in the column 'question'"):
        parse_row({"golden_answers": ["x"], **row}, "q")


def test_a_question_that_looks_like_a_prompt_only_in_part_stays_whole():
    text = "What does the tag <answer> mean? Question: is it closed?"
    assert parse_row(truth("x", question=text), "q").text == text


# --- what counts as an answer


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ("Paris", [["Paris"]]),
        (["Paris", "Lutetia"], [["Paris", "Lutetia"]]),
        ({"target": "Paris"}, [["Paris"]]),
        ({"target": ["Paris", "Lutetia"]}, [["Paris", "Lutetia"]]),
        ({"target": [["Paris"], ["Rome", "Roma"]]}, [["Paris"], ["Rome", "Roma"]]),
        (["Paris", ["Rome", "Roma"]], [["Paris"], ["Rome", "Roma"]]),
        ("Paris<|answer_split|> Lutetia <|answer_split|>", [["Paris", "Lutetia"]]),
        (["Paris", " Paris ", "", None], [["Paris"]]),
        (1905, [["1905"]]),
        ([1.5, "x"], [["1.5", "x"]]),
        ('{"Q2": "Rome", "Q1": "Paris"}', [["Paris"], ["Rome"]]),
        ('{"Q10": "c", "Q9": "b", "Q1": ["a", "A"]}', [["a", "A"], ["b"], ["c"]]),
        ('{"a": "Paris"}', [['{"a": "Paris"}']]),  # no MemAct keys: a text like any other
        ("{not json", [["{not json"]]),
    ],
)
def test_ground_truths_of_every_shape(value, answers):
    question = parse_row(truth(value), "q")
    assert question.answers == answers
    assert question.objectives == len(answers)


def test_golden_answers_serve_where_the_ground_truth_is_empty():
    golden = ["Paris", "Lutetia"]
    for nothing in (None, "", [], {"target": []}, {"target": None}, [[]]):
        assert parse_row(truth(nothing, golden_answers=golden), "q").answers == [golden]
    assert parse_row(truth("Rome", golden_answers=golden), "q").answers == [["Rome"]]


@pytest.mark.parametrize("nothing", [None, "", "  ", [], {}, {"target": []}, [None], True])
def test_a_row_without_answers_is_refused(nothing):
    with pytest.raises(ValueError, match=r"no answers; give them in reward_model\.ground_truth"):
        parse_row(truth(nothing), "q")


def test_an_objective_without_an_answer_is_named():
    with pytest.raises(ValueError, match="no answer to objective 2"):
        parse_row(truth({"target": [["a"], [], ["c"]]}), "q")
    with pytest.raises(ValueError, match="no answer to objective 1"):
        parse_row(truth('{"Q1": "", "Q2": "b"}'), "q")


def test_numbers_that_are_none_are_no_aliases():
    assert parse_row(truth([float("nan"), float("inf"), "x"]), "q").answers == [["x"]]


@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=2, max_size=4))
def test_lists_of_lists_keep_every_alias(target):
    expected = [list(dict.fromkeys(a.strip() for a in aliases)) for aliases in target]
    question = parse_row(truth({"target": target}), "q")
    assert question.answers == expected
    assert question.gold == "; ".join(aliases[0] for aliases in expected)


# --- parts, ids, supporting passages


def test_a_semicolon_inside_a_question_leaves_the_parts_unknown():
    row = truth([["a"], ["b"]], question="Answer the following questions: Who; what?; Where?")
    question = parse_row(row, "q")
    assert question.text == "Who; what?; Where?"
    assert question.parts == ()


def test_memact_lines_that_do_not_fit_the_keys_leave_the_text_alone():
    text = "Answer these.\nQ1: Who?\nQ3: Where?"
    question = parse_row(truth('{"Q1": "a", "Q2": "b"}', question=text), "q")
    assert (question.text, question.parts) == (text, ())


@given(st.lists(TEXT.filter(lambda t: ";" not in t), min_size=2, max_size=5))
def test_mem1_texts_are_cut_into_the_questions_they_were_joined_from(parts):
    content = "Answer the following questions: " + "; ".join(parts) + "\n"
    row = {"prompt": user(content), "reward_model": {"ground_truth": [["x"]] * len(parts)}}
    assert parse_row(row, "q").parts == tuple(part.strip() for part in parts)


@pytest.mark.parametrize(
    ("row", "identity"),
    [
        ({"id": "a"}, "a"),
        ({"id": 0}, "0"),
        ({"id": "a", "extra_info": {"index": "b"}}, "a"),
        ({"extra_info": {"index": "b"}}, "b"),
        ({"extra_info": {"index": ""}}, "default"),
        ({"extra_info": {"index": 7}}, "default"),
        ({}, "default"),
    ],
)
def test_ids(row, identity):
    assert parse_row(truth("x", **row), "default").id == identity


@pytest.mark.parametrize(
    ("value", "answers", "ids"),
    [
        (["p1", 2], "a", (("p1", "2"),)),
        ([["p1"], ["p2", "p3"]], [["a"], ["b"]], (("p1",), ("p2", "p3"))),
        (["p1", "p2"], [["a"], ["b"]], ()),  # whose are they?
        ([], "a", ()),
        (None, "a", ()),
    ],
)
def test_supporting_ids_belong_to_objectives(value, answers, ids):
    assert parse_row(truth(answers, supporting_ids=value), "q").supporting_ids == ids


# --- files


def test_only_the_columns_that_matter_are_read():
    for _, row in read_rows(FORMATS / "memagent.parquet"):
        assert "context" not in row
        assert set(row) <= set(COLUMNS)


def test_json_lines_count_from_one_and_skip_blank_lines(tmp_path):
    file = tmp_path / "q.jsonl"
    # A line separator inside a text is no end of a line.
    file.write_text('{"question": "a\u2028b", "golden_answers": ["x"]}\n\n'
                    '{"question": "c", "golden_answers": ["y"]}\n', encoding="utf-8")  # fmt: skip
    rows = read_rows(file)
    assert [number for number, _ in rows] == [1, 3]
    assert rows[0][1]["question"] == "a\u2028b"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("q.csv", "question\n", "unknown kind of file; give a .jsonl or a .parquet file"),
        ("q.jsonl", "", "the file has no rows"),
        ("q.jsonl", "\n \n", "the file has no rows"),
        ("q.jsonl", '{"question": "a", "golden_answers": []}\n{oops\n', "row 2: not JSON"),
        ("q.jsonl", '["a"]\n', "row 1: not a JSON object"),
        ("q.jsonl", b"\xff\xfe\x00", "not a readable text file"),
        ("q.parquet", "not parquet", "not a readable parquet file"),
        ("q.jsonl", '{"query": "a", "golden_answers": ["x"]}', "no question text (column 'quest"),
        ("q.jsonl", '{"question": "a", "gold": ["x"]}', "no answers (column 'reward_model' or "),
        ("q.jsonl", '{"query": "a", "gold": "x"}', "(there are: gold, query)"),
    ],
)
def test_fault_51_unusable_files_are_refused_in_one_line(tmp_path, name, content, complaint):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        read_rows(file)
    assert str(error.value).startswith(str(file))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_fault_51_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.jsonl: no such file"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="no such file"):
        read_rows(tmp_path)


def test_folder_names_do_not_become_columns(tmp_path):
    folder = tmp_path / "id=7"
    folder.mkdir()
    table = pa.table({"question": ["Who?"], "golden_answers": [["x"]]})
    pq.write_table(table, folder / "q.parquet")
    [(number, row)] = read_rows(folder / "q.parquet")
    assert (number, row) == (1, {"question": "Who?", "golden_answers": ["x"]})


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    schema = pa.schema([("question", pa.string()), ("golden_answers", pa.list_(pa.string()))])
    pq.write_table(schema.empty_table(), tmp_path / "q.parquet")
    with pytest.raises(ValueError, match="the file has no rows"):
        read_rows(tmp_path / "q.parquet")
