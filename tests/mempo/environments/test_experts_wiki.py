import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.protocol import parse_step
from mempo.config import Agent, Environment
from mempo.environments.dataset_world import DatasetWorld
from mempo.environments.datasets import compose
from mempo.environments.experts_wiki import (
    EMPTY_MEMORY,
    calibration_pairs,
    format_memory,
    script_for,
)
from mempo.environments.phrases import find
from mempo.types import Passage, Question

PASSAGES = {
    p.id: p
    for p in (
        Passage("song", "Low (song)", "Low is a song by Dan Snow. It sold well."),
        Passage("singer", "Dan Snow", "Dan Snow (born 5 May 1987) is a singer. He is tall."),
        Passage("film", "Vale", "Vale is a 1942 film directed by Eva Lind. It was lost."),
        Passage("director", "Eva Lind", "Eva Lind was a director. She died in Oslo, Norway."),
        Passage("rain", "Rain", "Rain is water that falls. It is wet."),
    )
}
ONE = Question(
    "one",
    "When was the performer of song Low (Song) born?",
    1,
    [["5 May 1987"]],
    supporting_ids=(("singer", "song"),),
)
TWO = Question(
    "two",
    "Where did the director of film Vale die?",
    1,
    [["Oslo"]],
    supporting_ids=(("director", "film"),),
)
BOTH = compose([ONE, TWO], 2, ("both",))


def search(query: str) -> list[Passage]:
    """The passage of that title first, and one that has nothing to do with it."""
    best = [p for p in PASSAGES.values() if find(query, p.title) or find(p.title, query)]
    return [*best[:1], PASSAGES["rain"]]


def shorten(text: str) -> str:
    return " ".join(text.split()[:9])


def script(question: Question, seed: int = 0, **quality):
    rng = np.random.default_rng(seed)
    return script_for(
        question, search=search, passages=PASSAGES, shorten=shorten, rng=rng, **quality
    )


def steps_of(question: Question, **quality):
    made = script(question, **quality)
    assert made is not None
    return made.steps


def test_a_careful_expert_keeps_every_fact_and_answers():
    steps = steps_of(ONE, sloppy=0.0)
    assert [(s.memory, s.action, s.text) for s in steps] == [
        (EMPTY_MEMORY, "tool_call", "Low (Song)"),
        ("[1] Low is a song by Dan Snow", "tool_call", "Dan Snow"),
        ("[1] Low is a song by Dan Snow | Dan Snow (born 5 May 1987)", "answer", "5 May 1987"),
    ]
    assert [s.think for s in steps] == [
        "[1] Look up Low (Song).",
        "[1] Look up Dan Snow.",
        "I can answer.",
    ]


def test_objectives_are_worked_on_one_after_another():
    steps = steps_of(BOTH, sloppy=0.0)
    first, second = BOTH.answers[0][0], BOTH.answers[1][0]
    assert [s.action for s in steps] == ["tool_call"] * 4 + ["answer"]
    assert [s.think[:3] for s in steps[:4]] == ["[1]", "[1]", "[2]", "[2]"]
    assert steps[-1].text == f"{first}; {second}" == BOTH.gold
    memory = steps[-1].memory or ""
    assert memory.startswith("[1] ")
    assert find(memory.split(" [2] ")[0], first)
    assert find(memory.split(" [2] ")[1], second)


def test_a_sloppy_step_drops_old_facts():
    steps = steps_of(ONE, sloppy=1.0, drop=1.0, miss=0.0, wrong=0.0)
    assert steps[-1].memory == "[1] Dan Snow (born 5 May 1987)"


def test_a_sloppy_step_misses_the_new_fact():
    steps = steps_of(ONE, sloppy=1.0, drop=0.0, miss=1.0, wrong=0.0)
    assert [s.memory for s in steps] == [EMPTY_MEMORY] * 3


def test_a_sloppy_step_notes_another_passage():
    steps = steps_of(ONE, sloppy=1.0, drop=1.0, miss=0.0, wrong=1.0)
    assert steps[-1].memory == "[1] Rain is water that falls"


def test_a_lost_objective_is_named_and_the_gold_answer_is_given_all_the_same():
    steps = steps_of(BOTH, sloppy=1.0, drop=1.0, miss=0.0, wrong=0.0)
    assert steps[-1].think == "[1] lost, I guess."
    assert steps[-1].text == BOTH.gold


def test_an_answer_in_the_last_reply_is_not_lost():
    steps = steps_of(ONE, sloppy=1.0, drop=0.0, miss=1.0, wrong=0.0)
    assert steps[-1].think == "I can answer."


def test_a_react_script_has_no_memory_and_loses_nothing():
    steps = steps_of(BOTH, sloppy=1.0, drop=1.0, agent=Agent(kind="react"))
    assert {s.memory for s in steps} == {None}
    assert steps[-1].think == "I can answer."


def test_the_same_draws_give_the_same_script():
    assert script(BOTH, 3) == script(BOTH, 3)
    assert len({str(script(BOTH, seed)) for seed in range(20)}) > 5


def test_what_the_expert_cannot_find_it_does_not_script():
    unknown = replace(ONE, supporting_ids=(("singer", "nowhere"),))
    rng = np.random.default_rng(0)
    assert script(unknown) is None
    pairs = calibration_pairs(unknown, search=search, passages=PASSAGES, shorten=shorten, rng=rng)
    assert pairs == []


@given(st.integers(0, 2**32), st.sampled_from([ONE, TWO, BOTH]))
def test_every_step_is_well_formed_and_copied_from_what_the_policy_sees(seed, question):
    made = script(question, seed)
    assert made is not None
    seen = question.text
    for step in made.steps:
        blocks = f"<mem>{step.memory}</mem><think>{step.think}</think>"
        assert parse_step(f"{blocks}<{step.action}>{step.text}</{step.action}>").well_formed
        if step.action == "tool_call":
            assert find(seen, step.text)
        for fact in re.split(r"\[\d\]|\|", step.memory or ""):
            copied = [part for part in fact.strip().split(": ") if part]  # title and sentence
            assert fact == EMPTY_MEMORY or all(find(seen, part) for part in copied)
        seen = f"{question.text}\n{step.memory}\n{step.observation}"


def test_replies_look_like_the_worlds(tmp_path):
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    corpus.write_text(
        '{"id": "song", "contents": "\\"Low (song)\\"\\nLow is a song by Dan Snow."}\n'
        '{"id": "rain", "contents": "\\"Rain\\"\\nRain is not a low song."}\n'
    )
    questions.write_text('{"id": "one", "question": "Who?", "golden_answers": ["x"]}\n')
    settings = Environment(
        name="dataset", questions=str(questions), corpus=str(corpus), test_fraction=0.0, top_k=2
    )
    world = DatasetWorld(settings, shorten)
    asked = Question(
        "one", "Who performed the song Low (song)?", 1, [["Dan Snow"]], supporting_ids=(("song",),)
    )

    def bm25(query: str) -> list[Passage]:
        [found] = world.retriever.search([query], 2)
        assert isinstance(found, list)
        return found

    made = script_for(
        asked, search=bm25, passages=PASSAGES, shorten=shorten, rng=np.random.default_rng(0)
    )
    assert made is not None
    assert made.steps[0].observation == world.reply([asked], [made.steps[0].text])[0]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([["a", "b"], ["c"]], "[1] a | b [2] c"),
        ([[], ["c"]], "[2] c"),
        ([[], []], EMPTY_MEMORY),
    ],
)
def test_memory_is_written_by_objective(facts, text):
    assert format_memory(facts) == text


def test_calibration_pairs_go_from_the_right_memory_to_the_empty_one():
    right = "[1] Low is a song by Dan Snow | Dan Snow (born 5 May 1987)"
    partial = {"[1] Low is a song by Dan Snow", "[1] Dan Snow (born 5 May 1987)"}
    for seed in range(10):
        pairs = calibration_pairs(
            ONE, search=search, passages=PASSAGES, shorten=shorten, rng=np.random.default_rng(seed)
        )
        memories = [memory for memory, _ in pairs]
        assert {gold for _, gold in pairs} == {"5 May 1987"}
        assert memories[0] == right
        assert EMPTY_MEMORY in memories
        assert set(memories[1:]) - {EMPTY_MEMORY} <= partial
        assert set(memories) & partial
        assert len(set(memories)) == len(memories)


def test_what_a_summary_agent_still_sees_is_not_lost() -> None:
    """Two hops and no summary before the answer: nothing was forgotten, however sloppy."""
    steps = steps_of(TWO, sloppy=1.0, drop=1.0, miss=1.0, agent=Agent(kind="summary"))
    assert [s.memory for s in steps] == [None] * len(steps)
    assert steps[-1].think == "I can answer."
    every = steps_of(
        BOTH, sloppy=1.0, drop=1.0, miss=1.0, agent=Agent(kind="summary", summary_every=2)
    )
    assert [s.memory is not None for s in every] == [
        n > 0 and n % 2 == 0 for n in range(len(every))
    ]
    assert every[2].memory == "nothing yet"
