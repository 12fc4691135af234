import json
from pathlib import Path

import pytest

from conf.load import load
from flows.doctor import PreflightError, check, preflight
from flows.doctor_data import Kind, check_data
from mempo.config import Experiment
from mempo.policies.codec import Codec
from mempo.policies.tiny import tiny_tokenizer

CITIES = {"Paris": "France", "Rome": "Italy", "Madrid": "Spain", "Lisbon": "Portugal"}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def experiment(tmp_path) -> Experiment:
    """Two questions to train on and two to measure on, all of which the expert solves."""
    texts = {city: f"{city} is the capital of {land}" for city, land in CITIES.items()}
    rows = [
        {
            "id": f"q{city}",
            "question": f"What is the capital of {land}",
            "golden_answers": [city],
            "supporting_ids": [city],
        }
        for city, land in CITIES.items()
    ]
    corpus = [{"id": city, "contents": f'"{city}"\n{text}'} for city, text in texts.items()]
    train = write_lines(tmp_path / "train.jsonl", rows[:2])
    test = write_lines(tmp_path / "test.jsonl", rows[2:])
    passages = write_lines(tmp_path / "corpus.jsonl", corpus)
    return load(
        "test",
        overrides=[
            *("environment.name=dataset", f"environment.corpus={passages}"),
            *(f"environment.questions={train}", f"environment.test_questions={test}"),
            *("rollout.questions=1", "evaluate.questions=1"),
        ],
    )


@pytest.fixture
def codec() -> Codec:
    """A vocabulary of just the words of these files."""
    words = ["What", "is", "the", "capital", "of", *CITIES, *CITIES.values()]
    return Codec(tiny_tokenizer(words))


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(experiment: Experiment, **settings: object) -> Experiment:
    """With other values of 'section__setting'."""
    for name, value in settings.items():
        section, _, key = name.partition("__")
        inner = getattr(experiment, section).model_copy(update={key: value})
        experiment = experiment.model_copy(update={section: inner})
    return experiment


def refused(experiment: Experiment, kind: Kind, codec: Codec | None) -> str:
    with pytest.raises(ValueError) as error:
        check_data(experiment, kind, codec)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["train", "evaluate", "sft"])
def test_these_questions_serve_every_kind_of_run(experiment, codec, kind):
    assert check_data(experiment, kind, codec)


def test_a_run_is_refused_only_for_what_it_draws(experiment, codec):
    training = changed(experiment, rollout__questions=3)
    assert refused(training, "train", codec).startswith("rollout.questions asks for 3")
    assert check_data(training, "evaluate", codec) and check_data(training, "sft", codec)
    evaluating = changed(experiment, evaluate__objectives=(3,))
    assert refused(evaluating, "train", codec).startswith("evaluate.objectives asks for 3")
    assert refused(evaluating, "evaluate", codec).startswith("evaluate.objectives asks for 3")
    assert check_data(evaluating, "sft", codec) == "the scripted expert solves 2 training questions"


def test_the_cold_start_is_refused_without_enough_solved_questions(experiment, codec, tmp_path):
    asking = changed(experiment, sft__objectives=(1, 3))
    message = refused(asking, "sft", codec)
    assert message.startswith("sft.objectives asks for 3 objectives") and "only 2" in message
    assert check_data(asking, "train", codec)
    row = {"question": "What is the capital of France", "golden_answers": ["Paris"]}
    bare = write_lines(tmp_path / "bare.jsonl", [row])
    message = refused(changed(experiment, environment__questions=str(bare)), "sft", codec)
    assert message.startswith("environment.questions: the scripted expert solves none")


def test_the_cold_start_of_the_atlas_is_refused_beyond_its_facts():
    message = refused_by_preflight(load("test", overrides=["sft.objectives=[25]"]), "sft")
    assert message.startswith("sft.objectives asks for 25 facts") and "24" in message
    preflight(load("test", overrides=["sft.objectives=[25]"]))


def test_the_cold_start_asks_for_its_own_start_and_nothing_of_training():
    strange = ["policy.model=models/none", "learner.minibatches=99", "evaluate.objectives=[99]"]
    preflight(load("test", overrides=[*strange, "sft.model=tiny"]), "sft")
    missing = load("test", overrides=["sft.model=models/none"])
    message = refused_by_preflight(missing, "sft")
    assert message.startswith("sft.model: there is no folder models/none")
    assert "sft.model" in [finding.setting for finding in check(missing, "sft")]
    preflight(missing)


def test_an_evaluation_is_not_refused_for_what_only_training_asks():
    strange = load("test", overrides=["learner.minibatches=99", "environment.objectives=[99]"])
    preflight(strange, "evaluate")
    with pytest.raises(PreflightError):
        preflight(strange)


@pytest.mark.parametrize("kept", ["extractive", "solved"])
def test_passages_are_cut_before_questions_are_filtered(experiment, codec, kept):
    corpus = Path(experiment.environment.corpus)
    texts = [(city, f"the capital of {land} is {city}") for city, land in CITIES.items()]
    write_lines(corpus, [{"id": city, "contents": f'"the"\n{text}'} for city, text in texts])
    whole = changed(experiment, environment__question_filter=kept)
    assert check_data(whole, "train", codec)
    message = refused(changed(whole, environment__passage_tokens=5), "train", codec)
    assert message.startswith(f"environment.question_filter '{kept}' leaves no question")


def test_an_atlas_of_words_that_the_shipped_policy_does_not_know_is_refused():
    shipped = "policy.model=builtin:atlas-sft"
    preflight(load("demo", overrides=[shipped, "cluster.parallel=1"]))
    for setting in ("entities=61", "attributes=9", "values=26"):
        experiment = load(
            "demo", overrides=[shipped, "cluster.parallel=1", f"environment.{setting}"]
        )
        for kind in ("train", "evaluate"):
            message = refused_by_preflight(experiment, kind)
            assert message.startswith("policy.model: the vocabulary of builtin:atlas-sft lacks")
            assert f"environment.{setting.partition('=')[0]}" in message and "'tiny'" in message
        preflight(experiment, "sft")  # demo's cold start begins from 'tiny'


@pytest.mark.parametrize("model", ["tiny", "builtin:atlas-sft"])
@pytest.mark.parametrize("kind", ["train", "evaluate", "sft"])
def test_real_questions_for_a_policy_of_the_atlas_are_refused(experiment, model, kind):
    message = refused_by_preflight(changed(experiment, policy__model=model), kind)
    assert message.startswith(f"policy.model: the vocabulary of {model} lacks words")
    assert "environment.questions ('What')" in message and "environment.name" in message


def test_what_needs_no_tokenizer_is_found_without_one(experiment):
    assert "unknown without a tokenizer" in check_data(experiment, "train", None)
    filtered = changed(experiment, environment__question_filter="solved", rollout__questions=3)
    assert refused(filtered, "train", None).startswith("rollout.questions asks for 3")


def refused_by_preflight(experiment: Experiment, kind: Kind) -> str:
    with pytest.raises(PreflightError) as error:
        preflight(experiment, kind)
    assert "\n" not in str(error.value)
    return str(error.value)
