"""Settings of `memory` that a run would ignore are refused, in a line naming setting and cure."""

import pytest

from conf.load import load
from conf.study import load_study, studies
from flows.doctor import PreflightError, preflight
from flows.doctor_credit import check_memory
from mempo.config import Experiment


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def experiment(*overrides: str) -> Experiment:
    return load("test", overrides=list(overrides))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["memory.gain_bonus=0.5"], ["memory.gain_bonus: 0.5", "memory.gain_bonus=0.0"]),
        (["memory.only_success=true"], ["memory.only_success: true", "memory.only_success=false"]),
        (["memory.length_cost=1"], ["memory.length_cost: 1.0"]),
    ],
)
def test_options_of_the_memory_advantage_are_refused_without_a_memory(overrides, parts):
    check_memory(experiment(*overrides))
    with pytest.raises(PreflightError) as caught:
        preflight(experiment("agent.kind=react", *overrides))
    message = str(caught.value)
    assert "\n" not in message and message.startswith(parts[0])
    assert [part for part in (*parts, "agent.kind react") if part not in message] == []
    preflight(experiment("agent.kind=react", "iterations=0", *overrides))  # nothing is trained


@pytest.mark.parametrize(
    ("overrides", "cure", "parts"),
    [
        (
            ["memory.weight=0", "memory.only_success=true"],
            "memory.weight=1",
            ["memory.only_success: true", "memory.weight"],
        ),
        (
            ["memory.weight=0", "memory.length_cost=0.5"],
            "memory.schedule=linear memory.final_weight=1",
            ["memory.length_cost: 0.5", "memory.weight"],
        ),
        (
            ["memory.final_weight=0.5", "memory.schedule=constant"],
            "memory.schedule=cosine",
            ["memory.schedule is constant"],
        ),
        (
            ["memory.reward=contrast", "memory.epsilon=0.1"],
            "memory.reward=posterior",
            ["memory.epsilon: 0.1", "memory.reward is contrast"],
        ),
        (
            ["memory.reward=posterior", "memory.epsilon=0.1", "memory.function=m:f"],
            "memory.function=",
            ["memory.epsilon: 0.1", "memory.function is set"],
        ),
    ],
)
def test_an_option_that_another_one_switches_off_is_refused(overrides, cure, parts):
    with pytest.raises(ValueError) as caught:
        check_memory(experiment(*overrides))
    assert [part for part in parts if part not in str(caught.value)] == []
    check_memory(experiment(*overrides, *cure.split()))


@pytest.mark.parametrize("name", studies())
def test_every_run_of_a_shipped_study_uses_what_it_sets(name):
    for child in load_study(name).children:
        if child.experiment.iterations > 0:
            check_memory(child.experiment)


def test_a_gain_bonus_needs_no_memory_advantage():
    check_memory(experiment("memory.weight=0", "memory.gain_bonus=1"))


def test_what_the_memory_advantage_will_be_is_told():
    assert check_memory(experiment("memory.schedule=constant")) == "A^M of weight 1"
    annealed = experiment("memory.weight=2", "memory.schedule=linear", "memory.final_weight=0.5")
    assert check_memory(annealed) == "A^M of weight 2 to 0.5, linear"
    own = experiment("memory.function=m:f", "memory.schedule=constant")
    assert check_memory(own) == "A^M of m:f of weight 1"
    assert "agent.kind is react" in check_memory(experiment("agent.kind=react"))


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("memory.gain_bonus=0.5", ["memory.gain_bonus: 0.5", "memory.gain_bonus=0.0"]),
        ("memory.length_cost=1", ["memory.length_cost: 1.0"]),
        ("memory.only_success=true", ["memory.only_success: true"]),
        ("memory.function=m:f", ["memory.function: m:f"]),
        ("reward.scale=none", ["reward.scale: none", "reward.scale=std"]),
    ],
)
@pytest.mark.parametrize("kind", ["self_memory", "react"])
def test_what_makes_advantages_is_refused_with_dpo(override, parts, kind):
    agent = [f"agent.kind={kind}"]
    with pytest.raises(ValueError) as caught:
        check_memory(experiment("loss.policy=dpo", override, *agent))
    assert "\n" not in str(caught.value)
    assert [part for part in parts if part not in str(caught.value)] == []
    # What presets share stays silent.
    shared = ("memory.weight=2", "memory.reward=contrast", "memory.schedule=cosine")
    check_memory(experiment("loss.policy=dpo", *shared, *agent))


def test_with_dpo_the_memory_is_only_monitored():
    told = check_memory(experiment("loss.policy=dpo"))
    assert "weight" not in told and "loss.policy is dpo" in told and "monitored" in told


def test_a_function_of_one_s_own_needs_a_memory_and_may_stand_beside_weight_0():
    check_memory(experiment("memory.function=m:f", "memory.weight=0"))
    with pytest.raises(ValueError, match=r"memory\.function: m:f .*agent\.kind react"):
        check_memory(experiment("memory.function=m:f", "agent.kind=react"))
