import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import Environment
from mempo.environments import make_world
from mempo.environments.dataset_world import NOTHING_FOUND, DatasetWorld
from mempo.environments.retrievers import SearchResult
from mempo.environments.world import ToolError
from mempo.types import Passage, Question

CORPUS = [
    {"id": "p1", "contents": '"Paris"\nParis is the capital of France.\nIt lies on the Seine.'},
    {"id": "p2", "contents": '"Rome"\nRome is the capital of Italy.'},
    {"id": "p3", "contents": "A nameless note about whales."},
]
ASKED = Question("q", "?", 1, [["x"]])
Make = Callable[..., DatasetWorld]


def whole(text: str) -> str:
    return text


BUILTIN = DatasetWorld(
    Environment(
        name="dataset",
        questions="builtin:wiki_multihop/questions.jsonl",
        corpus="builtin:wiki_multihop/corpus.jsonl",
    ),
    whole,
)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def single(n: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"q{n}", "question": f"Number {n}?", "golden_answers": [f"x{n}"], **fields}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(rows, shorten=whole, test_rows=None, **settings): a world over files of these rows."""

    def build(
        rows: Sequence[dict[str, Any]],
        shorten: Callable[[str], str] = whole,
        test_rows: Sequence[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> DatasetWorld:
        files: dict[str, Any] = {
            "questions": write(tmp_path / "questions.jsonl", rows),
            "corpus": write(tmp_path / "corpus.jsonl", CORPUS),
        }
        if test_rows is not None:
            files["test_questions"] = write(tmp_path / "test.jsonl", test_rows)
        return DatasetWorld(Environment(name="dataset", **(files | settings)), shorten)

    return build


class Stub:
    """A retriever that answers with one passage naming the query, or does what it is told."""

    def __init__(self, special: dict[str, Any] | None = None) -> None:
        self.special = special or {}
        self.calls: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        self.calls.append(list(queries))
        raised = [r for q in queries if isinstance(r := self.special.get(q), RuntimeError)]
        if raised:
            raise raised[0]
        return [self.special.get(q, [Passage("p", "", f"about {q}")]) for q in queries]

    def check(self) -> None:
        raise ValueError("environment.retriever_url: nobody there")


# --- questions


def test_splits_come_from_one_file_by_share_or_from_two(make):
    rows = [single(n) for n in range(30)]
    world = make(rows)
    train, test = world.pool("train"), world.pool("test")
    assert sorted(q.id for q in [*train, *test]) == sorted(row["id"] for row in rows)
    assert train and test
    world = make(rows, test_rows=[single(99)])
    assert [q.id for q in world.pool("train")] == [row["id"] for row in rows]
    assert [q.id for q in world.pool("test")] == ["q99"]


def test_a_pool_is_a_copy(make):
    world = make([single(0)], test_fraction=0.0)
    world.pool("train").clear()
    assert len(world.pool("train")) == 1


def test_questions_depend_on_the_key_alone(make):
    world = make([single(n) for n in range(20)], test_fraction=0.0)
    ask = [world.questions("train", 5, objectives=2, key=("seed", i)) for i in (0, 1, 0)]
    assert ask[0] == ask[2] != ask[1]
    again = make([single(n) for n in range(20)], test_fraction=0.0)
    assert again.questions("train", 5, objectives=2, key=("seed", 0)) == ask[0]


def test_a_smaller_draw_is_the_beginning_of_a_larger_one(make):
    world = make([single(n) for n in range(20)], test_fraction=0.0)
    few = world.questions("train", 3, objectives=2, key=(0,))
    assert world.questions("train", 30, objectives=2, key=(0,))[:3] == few


def test_every_single_question_is_used_once_before_any_is_used_again(make):
    world = make([single(n) for n in range(12)], test_fraction=0.0)
    drawn = world.questions("train", 4, objectives=3, key=(0,))
    used = [i for question in drawn for i in question.id.split("+")]
    assert sorted(used) == sorted(f"q{n}" for n in range(12))


def test_all_combinations_can_be_drawn(make):
    world = make([single(n) for n in range(5)], test_fraction=0.0)
    drawn = world.questions("train", 10, objectives=2, key=(0,))
    # 5 over 2 = 10 pairs, each as a set once.
    assert len({frozenset(q.id.split("+")) for q in drawn}) == 10


def test_rows_with_that_many_objectives_are_served_as_they_are(make):
    pairs = [
        {"id": f"pair{n}", "question": f"{n}?; {n + 1}?",
         "reward_model": {"ground_truth": {"target": [["a"], ["b"]]}}}
        for n in range(3)
    ]  # fmt: skip
    world = make([single(0), single(1), *pairs], test_fraction=0.0)
    drawn = world.questions("train", 3, objectives=2, key=(0,))
    assert {q.id for q in drawn} == {"pair0", "pair1", "pair2"}
    assert {q.id for q in world.questions("train", 2, objectives=1, key=(0,))} == {"q0", "q1"}


@pytest.mark.parametrize(
    ("split", "setting"), [("train", "environment.objectives"), ("test", "evaluate.objectives")]
)
def test_fault_51_k_larger_than_the_data_is_refused(make, split, setting):
    world = make([single(n) for n in range(3)], test_rows=[single(n) for n in range(3)])
    with pytest.raises(ValueError) as error:
        world.questions(split, 1, objectives=4, key=(0,))
    assert str(error.value) == (
        f"{setting} asks for 4 objectives, but the {split} split has 3 single questions to "
        "compose and none with 4; lower it or give more questions"
    )


@pytest.mark.parametrize(
    ("split", "setting"), [("train", "rollout.questions"), ("test", "evaluate.questions")]
)
@pytest.mark.parametrize(("objectives", "there_are"), [(1, 3), (2, 3), (3, 1)])
def test_fault_51_more_questions_than_the_data_gives_are_refused(
    make, split, setting, objectives, there_are
):
    world = make([single(n) for n in range(3)], test_rows=[single(n) for n in range(3)])
    assert len(world.questions(split, there_are, objectives=objectives, key=(0,))) == there_are
    with pytest.raises(ValueError, match=f"{setting} asks for {there_are + 1} questions") as error:
        world.questions(split, there_are + 1, objectives=objectives, key=(0,))
    assert f"has only {there_are}" in str(error.value)


def test_fault_51_an_empty_split_is_refused(make):
    world = make([single(0)], test_fraction=0.0)
    with pytest.raises(ValueError, match=r"evaluate\.objectives asks for 1 objectives, but the "):
        world.questions("test", 1, objectives=1, key=(0,))


@given(st.integers(1, 4), st.integers(0, 12), st.integers(0, 9))
def test_drawn_questions_differ_and_have_the_objectives_asked_for(objectives, count, key):
    drawn = BUILTIN.questions("test", count, objectives=objectives, key=("draw", key))
    assert len({frozenset(q.id.split("+")) for q in drawn}) == len(drawn) == count
    held_out = {q.id for q in BUILTIN.pool("test")}
    for question in drawn:
        assert question.objectives == len(question.parts) == objectives
        assert set(question.id.split("+")) <= held_out
        assert question.text == "; ".join(question.parts)


def test_steps_grow_with_objectives_beyond_mempos_limit(make):
    world = make([single(0)])
    assert world.max_steps(ASKED) == 16
    assert world.max_steps(Question("q", "?", 20, [["x"]] * 20)) == 22


@pytest.mark.parametrize("objectives", range(1, 17))
def test_one_to_sixteen_objectives_are_composed_with_at_least_sixteen_steps(
    objectives: int,
) -> None:
    [question] = BUILTIN.questions("test", 1, objectives=objectives, key=(0,))
    assert question.objectives == len(question.answers) == objectives
    assert BUILTIN.max_steps(question) == {15: 17, 16: 18}.get(objectives, 16)


# --- replies


def test_a_reply_numbers_its_passages_one_a_line(make):
    world = make([single(0)], top_k=2)
    [reply] = world.reply([ASKED], ["capital of France"])
    assert reply == (
        "[1] Paris: Paris is the capital of France. It lies on the Seine.\n"
        "[2] Rome: Rome is the capital of Italy."
    )
    assert world.reply([ASKED], ["whales"]) == ["[1] A nameless note about whales."]


def test_passages_are_cut_but_titles_stay(make):
    world = make([single(0)], lambda text: text[:9], top_k=1)
    assert world.reply([ASKED], ["capital France"]) == ["[1] Paris: Paris is"]


def test_a_search_without_a_match_says_so(make):
    world = make([single(0)])
    assert world.reply([ASKED], ["xylophone"]) == [NOTHING_FOUND]
    assert world.reply([], []) == []


def test_one_call_serves_all_queries_and_blank_ones_are_not_asked(make):
    world = make([single(0)])
    world.retriever = stub = Stub()
    replies = world.reply([ASKED] * 4, [" a ", "", "b", " \n"])
    assert replies == ["[1] about a", NOTHING_FOUND, "[1] about b", NOTHING_FOUND]
    assert stub.calls == [["a", "b"]]


def test_fault_35_a_tool_that_raises_for_1_of_8_costs_only_that_call(make):
    world = make([single(0)])
    world.retriever = Stub({"q3": RuntimeError("index broken")})
    replies = world.reply([ASKED] * 8, [f"q{n}" for n in range(8)])
    failed = replies.pop(3)
    assert isinstance(failed, ToolError)
    assert str(failed) == "search failed (RuntimeError: index broken)"
    assert replies == [f"[1] about q{n}" for n in range(8) if n != 3]


def test_fault_35_an_error_that_the_retriever_returns_stays_with_its_call(make):
    world = make([single(0)])
    refused = ToolError("no")
    world.retriever = Stub({"b": refused})
    assert world.reply([ASKED] * 3, ["a", "b", "c"]) == ["[1] about a", refused, "[1] about c"]


def test_fault_35_a_tool_that_always_raises_fails_every_call(make):
    world = make([single(0)])
    world.retriever = Stub({q: RuntimeError("down") for q in "ab"})
    replies = world.reply([ASKED] * 2, ["a", "b"])
    assert all(isinstance(reply, ToolError) for reply in replies)


def test_check_asks_the_retriever(make):
    world = make([single(0)])
    world.check()
    world.retriever = Stub()
    with pytest.raises(ValueError, match=r"environment\.retriever_url: nobody there"):
        world.check()


# --- settings


def test_the_extractive_filter_judges_passages_as_the_policy_sees_them(make):
    rows = [
        single(0, golden_answers=["Seine"], supporting_ids=["p1"]),
        single(1, golden_answers=["Italy"], supporting_ids=["p2"]),
        single(2, golden_answers=["yes"], supporting_ids=["p2"]),
        single(3),
    ]
    kept = make(rows, question_filter="extractive", test_fraction=0.0).pool("train")
    assert [q.id for q in kept] == ["q0", "q1"]
    # 33 characters keep "Italy" and cut "Seine".
    cut = make(rows, lambda t: t[:33], question_filter="extractive", test_fraction=0.0)
    assert [q.id for q in cut.pool("train")] == ["q1"]


def test_fault_51_a_filter_that_leaves_nothing_is_refused(make):
    with pytest.raises(ValueError, match=r"environment\.question_filter 'extractive' leaves no"):
        make([single(0)], question_filter="extractive", test_fraction=0.0)


def test_the_filter_that_leaves_nothing_is_named_as_the_user_set_it(make):
    with pytest.raises(ValueError, match=r"environment\.question_filter 'solved' leaves no"):
        make([single(0)], question_filter="solved", test_fraction=0.0)


@pytest.mark.parametrize("kept", ["extractive", "solved"])
def test_a_filter_reads_the_corpus_of_whatever_retriever(make, monkeypatch, kept):
    rows = [
        {
            "question": "What is the capital of France?",
            "golden_answers": ["Paris"],
            "supporting_ids": ["p1"],
        },
        single(1),
    ]
    server = Stub({"France": [Passage("p1", "Paris", "Paris is the capital of France.")]})
    monkeypatch.setattr(server, "check", lambda: None)
    monkeypatch.setattr(
        "mempo.environments.dataset_world.open_retriever", lambda settings, corpus: server
    )
    served = {"retriever": "search_r1", "question_filter": kept, "test_fraction": 0.0}
    assert [q.gold for q in make(rows, **served).pool("train")] == ["Paris"]
    with pytest.raises(ValueError, match=f"corpus is empty; .*question_filter '{kept}' needs it"):
        make(rows, corpus="", **served)


def test_the_expert_is_not_asked_where_the_search_server_is_not_there(make, monkeypatch):
    monkeypatch.setattr(
        "mempo.environments.dataset_world.open_retriever", lambda settings, corpus: Stub()
    )
    rows = [single(0, golden_answers=["Italy"], supporting_ids=["p2"])]
    with pytest.raises(ValueError, match=r"environment\.retriever_url: nobody there"):
        make(rows, retriever="recall", question_filter="solved", test_fraction=0.0)


def test_a_search_for_the_expert_that_fails_names_the_server(make):
    world = make([single(0)])
    world.retriever = Stub({"a": ToolError("down")})
    assert world.find("b") == [Passage("p", "", "about b")]
    with pytest.raises(ConnectionError, match=r"environment\.retriever_url: .*down"):
        world.find("a")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"questions": ""}, "environment.questions is empty; name a question file"),
        ({"corpus": ""}, "environment.corpus is empty; name a file of passages"),
        ({"questions": "none.jsonl"}, "environment.questions: none.jsonl: no such file"),
        ({"test_questions": "none.parquet"}, "environment.test_questions: none.parquet: no such"),
        ({"corpus": "none.jsonl"}, "environment.corpus: none.jsonl: cannot be read as a corpus"),
        ({"corpus": "builtin:none.jsonl"}, "environment.corpus: builtin:none.jsonl: no such"),
        ({"retriever": "search_r1"}, "environment.retriever_url: '' is no address; write http"),
        ({"retriever": "recall", "retriever_url": "localhost:80"}, "'localhost:80' is no address"),
    ],
)
def test_fault_51_unusable_settings_are_named_before_anything_runs(make, settings, complaint):
    with pytest.raises(ValueError) as error:
        make([single(0)], **settings)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_search_server_needs_no_corpus_and_is_not_called_to_build_the_world(make):
    world = make([single(0)], corpus="", retriever="search_r1", retriever_url="http://127.0.0.1:1")
    assert len(world.pool("train")) + len(world.pool("test")) == 1


def test_the_environment_of_that_name_is_this_world(make, tmp_path):
    make([single(0)])
    settings = Environment(
        name="dataset",
        questions=str(tmp_path / "questions.jsonl"),
        corpus=str(tmp_path / "corpus.jsonl"),
    )
    assert isinstance(make_world(settings, whole), DatasetWorld)
