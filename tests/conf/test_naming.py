import doctest

import pytest

from conf import naming
from conf.load import load, presets
from conf.naming import changes, run_name


def test_the_examples_in_the_texts_hold():
    assert doctest.testmod(naming).failed == 0


@pytest.mark.parametrize("preset", presets())
def test_a_preset_as_it_ships_differs_in_nothing(preset):
    experiment = load(preset, seed=3, overrides=["cluster.cpus=2", "tracking.experiment=mine"])
    assert changes(experiment) == {}
    assert run_name(experiment, "evaluate") == f"{preset} evaluate seed 3"


def test_a_name_says_what_differs_and_how_much_more():
    overrides = ["loss.clip=0.3", "environment.objectives=[2, 4]", "policy.model=/a/b/000012"]
    experiment = load("demo", seed=7, overrides=[*overrides, "evaluate.before=false"])
    assert changes(experiment) == {
        "environment.objectives": [2, 4],
        "policy.model": "/a/b/000012",
        "loss.clip": 0.3,
        "evaluate.before": False,
    }
    assert run_name(experiment, "train") == (
        "demo mempo environment.objectives=2,4 model=000012 clip=0.3 +1 seed 7"
    )


def test_a_baseline_is_called_by_its_algorithm():
    experiment = load("demo", overrides=["memory.weight=0", "memory.final_weight=0"])
    assert run_name(experiment, "train").startswith("demo grpo ")


def test_a_cold_start_and_an_evaluation_are_not_named_for_what_makes_them_one():
    start = load("demo").model_copy(update={"iterations": 0})
    assert run_name(start, "evaluate") == "demo evaluate seed 0"
    experiment = load("demo", overrides=["policy.model=tiny", "sft.model=tiny"])
    assert "policy.model" not in run_name(experiment, "sft")


def test_a_file_of_ones_own_has_nothing_to_differ_from(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: demo\nloss:\n  clip: 0.3\n")
    experiment = load(str(tmp_path / "mine.yaml"), seed=2)
    assert changes(experiment) == {}
    assert run_name(experiment, "train") == "mine mempo seed 2"


def test_names_stay_short():
    overrides = [f"environment.{name}={'x' * 200}" for name in ("questions", "corpus", "tool")]
    assert len(run_name(load("demo", overrides=overrides), "train")) < 200
