"""The examples of docs/own.md are short, complete, and do what they say in a real iteration."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conf.load import load
from mempo import own
from mempo.config import Experiment
from mempo.records import groups, read_rollouts
from tasks.learner_actors import Learner
from tasks.sampler_actor import Sampler

PAGE = (Path(__file__).parents[1] / "docs" / "own.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)
PATHS = re.findall(r"--set ([\w.]+)=(\w+:\w+)", PAGE)


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Experiment:
    """The demo with the four examples, as the command of the page sets them."""
    for name, text in EXAMPLES:
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    small = ["rollout.questions=2", "rollout.group_size=4", "environment.objectives=[2]"]
    return load("demo", overrides=[*small, *(f"{s}={path}" for s, path in PATHS)])


def test_the_page_shows_each_function_whole_in_under_25_lines() -> None:
    assert {setting for setting, _ in PATHS} == set(own.PARAMETERS)
    assert sorted(path.split(":")[0] for _, path in PATHS) == sorted(name for name, _ in EXAMPLES)
    assert all(len(text.splitlines()) + 1 < 25 for _, text in EXAMPLES)
    assert PAGE.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("setting", own.PARAMETERS)
def test_the_page_says_the_signature_that_is_checked(setting: own.Setting) -> None:
    section = PAGE.split(f"`{setting}`\n")[1]
    signature = re.search(r"`\((.*)\) -> ", section)
    assert signature
    names = re.findall(r"(\w+): ", signature[1])
    assert tuple(names) == own.PARAMETERS[setting]


def test_the_examples_run(experiment: Experiment, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    Sampler(experiment, threads=1).rollout(path, 0)
    Learner(experiment, threads=1).score(path, 0)
    trajectories, _ = read_rollouts(path)
    steps = [step for t in trajectories for step in t.steps]

    for t in trajectories:  # the reward
        written = sum(len(s.output_ids) for s in t.steps)
        assert t.reward == pytest.approx(t.em * t.format - 1e-4 * written)
    replies = {s.observation for s in steps if s.action == "tool_call"}  # the tool
    assert replies <= {"Nothing found.", ""} and "Nothing found." in replies
    third = next(t for t in trajectories if len(t.steps) > 3)  # the agent
    assert third.steps[3].prompt_ids == [
        *third.steps[0].prompt_ids,
        *(i for s in (third.steps[0], third.steps[2]) for i in (*s.output_ids, *s.observation_ids)),
    ]
    # The memory reward, normalised by step index: log ratios by hand.
    table = pd.read_parquet(path)
    table["ratio"] = np.log(table["p_answer_mem"].clip(lower=1e-6)) - np.log(
        table["p_answer_full"].clip(lower=1e-6)
    )
    compared = 0
    for _, at in table.groupby(["question_id", "step"]):
        known = at["ratio"].dropna()
        if len(known) > 1 and known.std(ddof=0) > 1e-3:
            compared += 1
            expected = (known - known.mean()) / known.std(ddof=0)
            assert at.loc[known.index, "adv_mem"].tolist() == pytest.approx(expected.tolist())
    assert compared and len(groups(trajectories)) == 2
