import json
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.load import load, sha256
from conf.sweep import best_yaml, load_sweep, sweeps
from conf.text import ConfigError
from mempo.config.space import Dimension

SWEEP = """
description: two settings
preset: test
seeds: [1, 2]
set: [iterations=3, evaluate.every=1]
method: tpe
trials: 6
parallel: 2
metric: eval_sampled/n2/f1
prune: true
space:
  learner.lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  learner.epochs: {low: 1, high: 4}
  memory.schedule: [constant, linear]
"""
GRID = """
preset: test
method: grid
metric: eval/n1/em
space:
  learner.lr: {low: 0.1, high: 0.4, step: 0.1}
  learner.epochs: {low: 1, high: 2}
  evaluate.memory_weight: [1, 2.0]
"""


@pytest.mark.parametrize("name", sweeps())
def test_every_shipped_sweep_loads(name):
    sweep = load_sweep(name)
    assert sweep.trials > 1 and len(sweep.space) > 1
    assert len(sweep.description) > 20 and sweeps()[name] == sweep.description


def test_a_file_says_what_is_searched_and_how(write):
    sweep = load_sweep(write(SWEEP))
    assert (sweep.name, sweep.method, sweep.trials, sweep.seeds) == ("mine", "tpe", 6, (1, 2))
    assert (sweep.metric, sweep.prune, sweep.parallel) == ("eval_sampled/n2/f1", True, 2)
    assert sweep.space == (
        Dimension("learner.lr", low=1e-4, high=1e-2, log=True),
        Dimension("learner.epochs", low=1, high=4, whole=True),
        Dimension("memory.schedule", choices=("constant", "linear")),
    )
    assert sweep.grid == ()
    first = sweep.first
    assert (first.seed, first.iterations, first.learner.lr) == (1, 3, 1e-4)


def test_a_trial_is_the_sweeps_settings_and_its_point_with_a_seed(write):
    sweep = load_sweep(write(SWEEP), overrides=["loss.clip=0.3", "cluster.parallel=1"], seeds=[7])
    point = {"learner.lr": 0.0012345678901234, "learner.epochs": 3, "memory.schedule": "linear"}
    e = sweep.experiment(point, 9)
    assert (e.seed, e.loss.clip, e.iterations) == (9, 0.3, 3)
    assert (e.learner.lr, e.learner.epochs) == (0.0012345678901234, 3)
    assert e.memory.schedule == "linear"
    assert sweep.seeds == (7,) and sweep.parallel == 1


def test_a_grid_is_the_whole_product_once(write):
    sweep = load_sweep(write(GRID))
    assert sweep.trials == len(sweep.grid) == 16
    assert sweep.grid[1] == {
        "learner.lr": 0.1,
        "learner.epochs": 1,
        "evaluate.memory_weight": 2.0,
    }
    assert len({json.dumps(point) for point in sweep.grid}) == 16
    assert {point["learner.lr"] for point in sweep.grid} == {0.1, 0.2, 0.3, 0.4}
    assert {point["learner.epochs"] for point in sweep.grid} == {1, 2}


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("preset:", "prest:", ["unknown key 'prest'", "preset"]),
        ("method: tpe", "method: bayes", ["'method'", "grid, random, tpe"]),
        ("trials: 6", "", ["'trials' is missing"]),
        ("trials: 6", "trials: 0", ["'trials' = 0", "above 0"]),
        ("parallel: 2", "parallel: 1.5", ["'parallel' = 1.5"]),
        ("seeds: [1, 2]", "seeds: [1, 1]", ["'seeds'", "twice"]),
        ("eval_sampled/n2/f1", "reward/mean", ["'metric' = 'reward/mean'", "eval_sampled/n4/f1"]),
        ("eval_sampled/n2/f1", "eval/n2/tt", ["'metric'", "more is better"]),
        ("eval_sampled/n2/f1", "eval/n5/f1", ["eval/n5/f1", "evaluate.objectives = [1, 2]"]),
        ("iterations=3", "evaluate.sampled=false", ["evaluate.sampled = False"]),
        ("evaluate.every=1", "evaluate.every=0", ["'prune'", "evaluate.every = 0"]),
        ("evaluate.every=1", "evaluate.every=3", ["'prune'", "iterations = 3"]),
        ("prune: true", "prune: 1", ["'prune' = 1"]),
        ("method: tpe", "method: grid", ["'prune' is true"]),
        ("iterations=3", "learner.lr=3", ["'set' and 'space' both name learner.lr"]),
        ("learner.lr:", "learner.rl:", ["learner.rl", "did you mean 'learner.lr'"]),
        ("learner.lr:", "cluster.cpus:", ["space.cluster.cpus", "drop it"]),
        ("learner.epochs:", "checkpoint.keep:", ["space.checkpoint.keep' has no effect"]),
        ("learner.epochs:", "price.prompt:", ["space.price.prompt' has no effect"]),
        ("learner.epochs:", "sft.steps:", ["space.sft.steps' has no effect"]),
        ("learner.epochs:", "evaluate.before:", ["space.evaluate.before' has no effect"]),
        ("learner.lr:", "seed:", ["space.seed", "drop it"]),
        ("learner.lr:", "evaluate.questions:", ["evaluate.questions", "the same for all trials"]),
        ("learner.lr:", "memory.group:", ["space.memory.group", "list of choices"]),
        ("low: 1.0e-4, ", "", ["space.learner.lr", "low = None"]),
        ("low: 1.0e-4", "low: 0.5", ["low = 0.5", "below high"]),
        ("low: 1.0e-4", "low: 0", ["low = 0", "logarithm"]),
        ("log: true", "log: 1", ["log = 1"]),
        ("log: true", "step: 0.003", ["steps of 0.003", "do not meet 0.01"]),
        ("log: true", "log: true, step: 0.1", ["goes without log"]),
        ("low: 1, ", "low: 1.5, ", ["space.learner.epochs", "whole number"]),
        ("low: 1, ", "low: -1, ", ["learner.epochs=-1", "learner.epochs"]),
        ("high: 1.0e-2", "high: 1.0e-2, hihg: 3", ["unknown key 'hihg'"]),
        ("[constant, linear]", "[constant]", ["1 choices"]),
        ("[constant, linear]", "[constant, constant]", ["twice"]),
        ("[constant, linear]", "[constant, quadratic]", ["memory.schedule=quadratic", "one of"]),
        ("[constant, linear]", "linear", ["list of choices", "a range"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(refused, write, old, new, parts):
    assert old in SWEEP
    message = refused(load_sweep, write(SWEEP.replace(old, new, 1)))
    assert "mine.yaml" in message
    assert [part for part in parts if part not in message] == []


def test_what_a_grid_cannot_be_is_refused(refused, write):
    assert "endless values" in refused(load_sweep, write(GRID.replace(", step: 0.1", "")))
    assert "has all points" in refused(load_sweep, write(GRID + "trials: 4\n"))
    same = refused(load_sweep, write(GRID.replace("[1, 2.0]", "[2, 2.0]")))
    assert "mean the same" in same and "evaluate.memory_weight=2" in same


def test_options_are_checked_too(refused, write):
    assert "--set and 'space' both name learner.lr" in refused(
        load_sweep, write(SWEEP), overrides=["learner.lr=1e-3"]
    )
    assert "--seeds says 1 twice" in refused(load_sweep, write(SWEEP), seeds=[1, 1])
    assert "unknown sweep 'dmeo'" in refused(load_sweep, "dmeo")
    assert "there is no sweep file mine/none.yaml" in refused(load_sweep, "mine/none.yaml")


def test_settings_that_do_not_go_together_are_found_when_a_trial_is_made(write):
    text = SWEEP.replace(
        "memory.schedule: [constant, linear]",
        "memory.group: [question, step]\n  rollout.group_size: [4, 1]",
    )
    sweep = load_sweep(write(text))  # each by itself is fine
    with pytest.raises(ConfigError, match="alone in its group"):
        sweep.experiment({"memory.group": "step", "rollout.group_size": 1}, 1)


POINTS = {
    "learner.lr": st.floats(1e-8, 1.0),
    "learner.epochs": st.integers(1, 50),
    "loss.clip": st.floats(0.01, 0.9),
    "memory.schedule": st.sampled_from(["constant", "linear"]),
    "memory.only_success": st.booleans(),
    "agent.history": st.sampled_from(["1", "3", "all", "memory"]),
    "environment.objectives": st.lists(st.integers(1, 6), min_size=1, max_size=3),
    "policy.model": st.text(
        st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1
    ).filter(lambda text: text.strip() == text)
    | st.sampled_from(["1e5", "no", "null", "12:30", "a: b # c", "'", '"']),
}


@given(st.fixed_dictionaries({}, optional=POINTS), st.integers(0, 2**31))
def test_the_best_is_a_preset_that_means_the_very_configuration(point, seed):
    sweep = load_sweep("test")
    experiment = sweep.experiment(point, seed)
    text = best_yaml(experiment, sweep.preset, "trial 3\nof a sweep")
    assert text.startswith("# trial 3 of a sweep\n")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "best.yaml"
        path.write_text(text, encoding="utf-8")
        again = load(str(path))
    assert sha256(again) == sha256(experiment)
    assert again.model_copy(update={"preset": "", "cluster": None, "tracking": None}) == (
        experiment.model_copy(update={"preset": "", "cluster": None, "tracking": None})
    )


def test_the_best_of_a_preset_of_ones_own_finds_that_file(tmp_path, write):
    (tmp_path / "base.yaml").write_text("extends: test\nloss: {clip: 0.11}\n")
    sweep = load_sweep(write(SWEEP.replace("preset: test", f"preset: {tmp_path}/base.yaml")))
    experiment = sweep.experiment({"learner.lr": 1e-3}, 2)
    (tmp_path / "far").mkdir()
    best = tmp_path / "far" / "best.yaml"
    best.write_text(best_yaml(experiment, sweep.preset, "x"))
    assert sha256(load(str(best))) == sha256(experiment)
    assert isclose(load(str(best)).loss.clip, 0.11)
