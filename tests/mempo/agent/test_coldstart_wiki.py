import json
from pathlib import Path

import pytest

from mempo.agent.coldstart_data import cold_start_data
from mempo.agent.coldstart_wiki import WikiColdStart
from mempo.config import Agent, Environment, Experiment, Sft
from mempo.policies.codec import Codec
from mempo.policies.tiny import tiny_tokenizer
from mempo.types import Question

CITIES = {"Paris": "France", "Rome": "Italy", "Madrid": "Spain", "Lisbon": "Portugal"}
WORDS = ["What", "is", "the", "capital", "of", *CITIES, *CITIES.values()]
CODEC = Codec(tiny_tokenizer(WORDS))


def write_lines(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def experiment(tmp_path) -> Experiment:
    """Three questions to learn from and one to measure on."""
    rows = [
        {
            "id": f"q{city}",
            "question": f"What is the capital of {land}",
            "golden_answers": [city],
            "supporting_ids": [city],
        }
        for city, land in CITIES.items()
    ]
    corpus = [
        {"id": city, "contents": f'"{city}"\n{city} is the capital of {land}'}
        for city, land in CITIES.items()
    ]
    return Experiment(
        environment=Environment(
            name="dataset",
            questions=write_lines(tmp_path / "train.jsonl", rows[:3]),
            test_questions=write_lines(tmp_path / "test.jsonl", rows[3:]),
            corpus=write_lines(tmp_path / "corpus.jsonl", corpus),
        ),
        agent=Agent(prompt="short"),
        sft=Sft(steps=5, final_steps=2, batch_size=4, objectives=(1, 2)),
    )


def changed(experiment: Experiment, section: str, **update: object) -> Experiment:
    inner = getattr(experiment, section).model_copy(update=update)
    return experiment.model_copy(update={section: inner})


def test_there_are_rows_for_every_step_and_they_follow_from_the_seed(experiment):
    data = cold_start_data(experiment, CODEC)
    assert isinstance(data, WikiColdStart)
    assert [len(data.batch(step)) for step in range(7)] == [4] * 7
    again = WikiColdStart(experiment, CODEC)
    other = WikiColdStart(experiment.model_copy(update={"seed": 1}), CODEC)
    assert again.batch(3) == data.batch(3) != other.batch(3)
    facts = data.facts()
    assert facts["training questions that the expert solves"] == 3
    assert facts["rows to train on"] == 28  # (5 + 2) steps of 4


def test_the_held_out_rows_are_of_the_test_questions(experiment):
    held_out = WikiColdStart(experiment, CODEC).held_out()
    assert len(held_out) == 2  # a search and an answer
    assert all("Portugal" in CODEC.text(row.ids) for row in held_out)


def test_fault_51_more_objectives_than_solved_questions_are_refused(experiment):
    WikiColdStart(changed(experiment, "sft", objectives=(1, 3)), CODEC)
    with pytest.raises(ValueError) as error:
        WikiColdStart(changed(experiment, "sft", objectives=(1, 4)), CODEC)
    assert str(error.value) == (
        "sft.objectives asks for 4 objectives, but the scripted expert solves only 3 training "
        "questions; lower it or give more questions"
    )


def test_fault_51_a_pass_without_a_row_is_refused_and_not_repeated_for_ever(
    experiment, monkeypatch
):
    data = WikiColdStart(experiment, CODEC)
    nothing: list[Question] = []
    monkeypatch.setattr(data, "solved", nothing)
    with pytest.raises(ValueError, match=r"^sft\.objectives = \[1, 2\]: no script"):
        data.facts()


def test_fault_51_nothing_to_measure_on_is_refused(experiment):
    alone = changed(experiment, "environment", test_questions="", test_fraction=0.0)
    with pytest.raises(ValueError, match=r"^environment\.test_fraction: the scripted expert"):
        WikiColdStart(alone, CODEC)


def test_fault_51_the_cold_start_needs_a_corpus(experiment):
    served = changed(
        experiment,
        "environment",
        corpus="",
        retriever="search_r1",
        retriever_url="http://127.0.0.1:1",
        question_filter="solved",
    )
    with pytest.raises(ValueError, match=r"^environment\.corpus is empty; .*'solved' needs it"):
        WikiColdStart(served, CODEC)


def test_a_probe_holds_the_right_memory_and_an_empty_one(experiment):
    data = WikiColdStart(experiment, CODEC)
    probes = data.probes()
    assert len(probes) == len(data.measured)
    for right, empty in probes:
        assert len(right.ids) > len(empty.ids)  # facts against "nothing yet"
        assert [i for i, m in zip(right.ids, right.mask, strict=True) if m] == [
            i for i, m in zip(empty.ids, empty.mask, strict=True) if m
        ]
