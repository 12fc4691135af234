from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import Agent, Environment, Sft
from mempo.draws import generator
from mempo.environments.atlas import EMPTY_MEMORY, AtlasWorld
from mempo.environments.experts import Script
from mempo.environments.world import Split, World
from mempo.policies.codec import Codec
from mempo.types import Question

SETTINGS = Environment(entities=10, attributes=4, values=5, reply_facts=3)


def ask(atlas: AtlasWorld, objectives: int = 3, key: int = 0) -> Question:
    [question] = atlas.questions("train", 1, objectives=objectives, key=(key,))
    return question


def facts_in(reply: object) -> list[str]:
    assert isinstance(reply, str)
    return reply.split(" ; ")


@pytest.mark.parametrize("objectives", range(1, 17))
def test_one_to_sixteen_objectives_are_asked_with_two_steps_more(
    atlas: AtlasWorld, objectives: int
) -> None:
    question = ask(atlas, objectives)
    assert question.objectives == len(set(question.parts)) == objectives
    assert atlas.max_steps(question) == objectives + 2


@given(objectives=st.integers(1, 12), key=st.integers(0, 10**6))
def test_a_question_asks_for_different_facts_and_its_answers_restate_them(
    atlas: AtlasWorld, objectives: int, key: int
) -> None:
    q = ask(atlas, objectives, key)
    assert q.objectives == len(q.parts) == len(set(q.parts)) == len(q.answers) == objectives
    assert q.text == "; ".join(q.parts)
    for part, [answer] in zip(q.parts, q.answers, strict=True):
        attribute, entity, value, finish = answer.split()
        assert part == f"{attribute} {entity}"
        assert attribute in atlas.attributes and entity in atlas.entities
        assert value in atlas.values[attribute] and finish in atlas.finishes


def test_questions_are_a_function_of_their_key(atlas: AtlasWorld) -> None:
    def ids(world: World, split: Split, objectives: int, *key: int) -> list[str]:
        return [q.id for q in world.questions(split, 4, objectives=objectives, key=key)]

    first = ids(atlas, "train", 2, 1, 2)
    assert len(set(first)) == 4
    assert ids(AtlasWorld(SETTINGS), "train", 2, 1, 2) == first
    for other in (
        ids(atlas, "test", 2, 1, 2), ids(atlas, "train", 3, 1, 2), ids(atlas, "train", 2, 1, 3)
    ):  # fmt: skip
        assert not set(other) & set(first)


def test_each_question_has_facts_of_its_own(atlas: AtlasWorld) -> None:
    one, two = ask(atlas, key=1), ask(atlas, key=2)
    assert atlas.facts(one.id) == AtlasWorld(SETTINGS).facts(one.id)
    assert len(atlas.facts(one.id)) == 40
    assert atlas.facts(one.id) != atlas.facts(two.id)


@given(key=st.integers(0, 10**6), objective=st.integers(0, 2))
def test_a_search_finds_the_right_fact_among_as_many_as_are_set(
    atlas: AtlasWorld, key: int, objective: int
) -> None:
    q = ask(atlas, key=key)
    facts = facts_in(atlas.reply([q], [q.parts[objective]])[0])
    assert len(set(facts)) == len(facts) == 3
    assert q.answers[objective][0] in facts
    known = {f"{a} {e} {v}" for (a, e), v in atlas.facts(q.id).items()}
    assert set(facts) <= known


def test_a_search_understands_order_and_surplus_words(atlas: AtlasWorld) -> None:
    q = ask(atlas)
    attribute, entity = q.parts[0].split()
    [reply] = atlas.reply([q], [f"what is {entity} {attribute} please"])
    assert q.answers[0][0] in facts_in(reply)


def test_half_a_key_finds_its_neighbours(atlas: AtlasWorld) -> None:
    q = ask(atlas)
    attribute, entity = q.parts[0].split()
    by_attribute, by_entity = atlas.reply([q, q], [attribute, entity])
    assert sum(f.split()[0] == attribute for f in facts_in(by_attribute)) >= 2
    assert sum(f.split()[1] == entity for f in facts_in(by_entity)) >= 2


@given(query=st.text(max_size=20))
def test_any_query_gets_a_reply_that_depends_on_nothing_else(atlas: AtlasWorld, query: str) -> None:
    q, other = ask(atlas, key=1), ask(atlas, key=2)
    [reply] = atlas.reply([q], [query])
    assert len(facts_in(reply)) == 3
    assert AtlasWorld(SETTINGS).reply([other, q], ["x", query])[1] == reply


def test_right_facts_do_not_stand_first(atlas: AtlasWorld) -> None:
    places = [
        facts_in(atlas.reply([q], [q.parts[0]])[0]).index(q.answers[0][0])
        for q in atlas.questions("train", 300, objectives=1, key=(0,))
    ]
    assert all(70 < places.count(n) < 130 for n in range(3))  # 100 expected, std 8


def test_words_are_distinct_tokens(atlas: AtlasWorld, atlas_codec: Codec) -> None:
    words = atlas.words()
    assert len(words) == len(set(words)) == 10 + 4 + 4 * 5 + 25
    q = ask(atlas)
    [reply] = atlas.reply([q], [q.parts[0]])
    text = f"{q.text} {reply} {q.gold} {EMPTY_MEMORY}"
    assert atlas_codec.tokenizer.unk_token_id not in atlas_codec.encode(text)


def test_a_trajectory_may_take_two_steps_more_than_it_needs(atlas: AtlasWorld) -> None:
    assert atlas.max_steps(ask(atlas, 4)) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entities": 2, "attributes": 2, "reply_facts": 5}, r"environment\.reply_facts is 5"),
        ({"entities": 6000}, r"environment\.entities: .* lower it"),
        ({"attributes": 8, "values": 700}, r"environment\.values: .* lower it"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AtlasWorld(Environment(**settings))


def test_more_objectives_than_facts_are_refused(atlas: AtlasWorld) -> None:
    assert len(ask(atlas, 40).parts) == 40
    with pytest.raises(ValueError, match=r"environment\.objectives asks for 41 facts"):
        ask(atlas, 41)


def script(atlas: AtlasWorld, kind: str, objectives: int = 3, **fields: Any) -> Script:
    rng = generator("script", kind, objectives)
    return atlas.script(
        ask(atlas, objectives), Agent.model_validate({"kind": kind}), Sft(**fields), rng
    )


def test_a_careful_expert_keeps_every_fact(atlas: AtlasWorld) -> None:
    s = script(atlas, "self_memory", sloppy=0.0)
    gold = [a[0] for a in s.question.answers]
    assert [step.memory for step in s.steps] == [
        EMPTY_MEMORY, gold[0], " , ".join(gold[:2]), " , ".join(gold)
    ]  # fmt: skip
    assert [step.action for step in s.steps] == ["tool_call"] * 3 + ["answer"]
    assert [step.text for step in s.steps] == [*s.question.parts, s.question.gold]
    replies = atlas.reply([s.question] * 3, list(s.question.parts))
    assert [step.observation for step in s.steps] == [*replies, ""]


def test_sloppiness_is_of_the_kind_that_is_set(atlas: AtlasWorld) -> None:
    always: dict[str, Any] = {"sloppy": 1.0, "drop": 0.0, "miss": 0.0, "wrong": 0.0}

    def memories(**fields: Any) -> list[str | None]:
        return [s.memory for s in script(atlas, "self_memory", **(always | fields)).steps]

    q = script(atlas, "self_memory").question
    gold = [a[0] for a in q.answers]
    assert memories()[-1] == " , ".join(gold)
    assert memories(drop=1.0) == [EMPTY_MEMORY, *gold]
    assert memories(miss=1.0) == [EMPTY_MEMORY] * 4
    wrong = memories(wrong=1.0, drop=1.0)[1:]
    for memory, right, part in zip(wrong, gold, q.parts, strict=True):
        assert memory != right and memory in facts_in(atlas.reply([q], [part])[0])


def test_the_answer_of_a_sloppy_expert_is_right_all_the_same(atlas: AtlasWorld) -> None:
    s = script(atlas, "self_memory", sloppy=1.0, drop=1.0, miss=1.0, wrong=0.0)
    assert s.steps[-1].text == s.question.gold


def test_a_react_expert_writes_no_memory(atlas: AtlasWorld) -> None:
    s = script(atlas, "react")
    assert s.agent == "react"
    assert [step.memory for step in s.steps] == [None] * 4


def test_a_reply_of_one_fact_has_no_wrong_one_to_take() -> None:
    alone = AtlasWorld(Environment(entities=10, attributes=4, values=5, reply_facts=1))
    s = script(alone, "self_memory", sloppy=1.0, wrong=1.0, miss=0.0, drop=0.0)
    assert s.steps[-1].memory == " , ".join(a[0] for a in s.question.answers)
