"""Import paths of one's own functions: what fits is found, what does not is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo import own
from mempo.config import Environment, Experiment, Reward

MODULE = """
import functools
LIMIT = 3
def reward(trajectory): return 1.0
def more(trajectory, scale=2.0, *, offset=0.0): return scale
def renamed(answer): return 1.0
def two(trajectory, answer): return 1.0
def none(): return 1.0
def needs(trajectory, *, scale): return 1.0
def loose(*args, **kwargs): return 1.0
async def later(trajectory): return 1.0
def tool(question, query): return query
def swapped(query, question): return query
class Counted:
    def __call__(self, trajectory): return 1.0
counted = Counted()
partial = functools.partial(two, answer="x")
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """module(text, name): a module that can be imported; its name."""

    def write(text: str = MODULE, name: str = "own_module_of_test_own") -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(own.sys.modules, name, raising=False)
        return name

    return write


def refused(setting: own.Setting, path: str) -> str:
    with pytest.raises(ValueError) as caught:
        own.load(setting, path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{setting}: ")
    return message


@pytest.mark.parametrize("name", ["reward", "more", "counted", "partial"])
def test_a_callable_with_the_documented_parameters_is_found(
    module: Callable[..., str], name: str
) -> None:
    assert callable(own.load("reward.function", f"{module()}:{name}"))


@pytest.mark.parametrize(
    ("setting", "name", "part"),
    [
        ("reward.function", "renamed", "takes (answer); write def renamed(trajectory)"),
        ("reward.function", "two", "takes (trajectory, answer)"),
        ("reward.function", "none", "takes ()"),
        ("reward.function", "needs", "takes (trajectory, *, scale)"),
        ("reward.function", "loose", "takes (*args, **kwargs)"),
        ("reward.function", "LIMIT", "is a int, no function"),
        ("reward.function", "later", "is async"),
        ("reward.function", "missing", "has no 'missing'; define it there"),
        ("environment.tool", "swapped", "write def swapped(question, query)"),
        ("environment.tool", "reward", "takes (trajectory)"),
        ("agent.function", "tool", "(agent, codec, question, head, steps)"),
        ("memory.function", "tool", "(question, steps, p_mem_S, p_full_S)"),
    ],
)
def test_fault_51_a_wrong_name_or_signature_is_refused(
    module: Callable[..., str], setting: own.Setting, name: str, part: str
) -> None:
    assert part in refused(setting, f"{module()}:{name}")


@pytest.mark.parametrize("path", ["name", "mod:", ":name", "a/b.py:name", "mod:a.b", "mod name:f"])
def test_fault_51_what_is_no_import_path_is_refused(path: str) -> None:
    assert f"'{path}' is no import path; write my_pkg.mod:name" in refused("agent.function", path)


def test_fault_51_a_module_that_is_not_there_is_told_from_one_that_fails(
    module: Callable[..., str],
) -> None:
    assert "there is no module not_there for 'not_there.at:all'" in refused(
        "reward.function", "not_there.at:all"
    )
    lacking = module("import not_there_either\n", "own_module_lacking")
    message = refused("reward.function", f"{lacking}:f")
    assert f"module {lacking} cannot be imported (ModuleNotFoundError" in message
    broken = module("raise RuntimeError('two\\nlines')\n", "own_module_broken")
    assert "(RuntimeError: two lines); mend it" in refused("reward.function", f"{broken}:f")


def test_only_the_paths_that_are_set_are_looked_at(module: Callable[..., str]) -> None:
    assert own.functions(Experiment()) == {}
    own.check(Experiment())
    path = f"{module()}:tool"
    experiment = Experiment(environment=Environment(tool=path))
    assert own.functions(experiment) == {"environment.tool": path}
    own.check(experiment)
    with pytest.raises(ValueError, match=r"reward\.function: .* takes \(question, query\)"):
        own.check(experiment.model_copy(update={"reward": Reward(function=path)}))


def test_the_digest_is_of_the_module_s_file(module: Callable[..., str]) -> None:
    path = f"{module()}:reward"
    assert own.digest("reward.function", path) == sha256(MODULE.encode()).hexdigest()
    named = Experiment(reward=Reward(function=path))
    assert own.digests(named) == {"reward.function": own.digest("reward.function", path)}
    assert own.digests(Experiment()) == {}


def test_what_a_function_raises_names_it_and_the_question(module: Callable[..., str]) -> None:
    path = f"{module('def f(trajectory): return {}[trajectory]', 'own_module_raises')}:f"
    with pytest.raises(ValueError) as caught:
        own.call("reward.function", path, "question q, rollout 1", "x")
    assert str(caught.value) == (
        f"reward.function: {path} failed on question q, rollout 1 (KeyError: 'x')"
    )


@pytest.mark.parametrize("values", [[1, 2.5, True], np.array([1, 2.5, 1.0]), (1, 2.5, np.True_)])
def test_numbers_of_any_sequence_become_floats(values: Any) -> None:
    assert own.numbers("memory.function", "m:f", "q", values, 3) == [1.0, 2.5, 1.0]


def test_nan_says_none() -> None:
    assert np.isnan(own.numbers("memory.function", "m:f", "q", [nan], 1)).all()


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ([1.0], "returned 1 values on q; return 2"),
        (None, "returned 1 values"),
        ([1.0, None], "returned None"),
        ([1.0, float("inf")], "returned inf on q; return finite numbers"),
        (["1", "2"], "returned '1'"),
        ([[1.0], [2.0]], "returned [1.0]"),
        (np.array(0.5), "returned a ndarray that cannot be read on q (TypeError: iteration over"),
        ([1.0, 10**400], "returned an int that no float can hold on q"),
        ([np.zeros((2, 2)), 1.0], "returned array([[0., 0.], [0., 0.]])"),
    ],
)
def test_what_is_no_number_a_step_is_refused(values: Any, part: str) -> None:
    with pytest.raises(ValueError, match=r"^memory\.function: m:f returned") as caught:
        own.numbers("memory.function", "m:f", "q", values, 2)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_a_module_that_exits_is_no_success(tmp_path, monkeypatch):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "holds.py").write_text("class K:\n    def __init__(self, trajectory): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"reward.function: module leaves cannot be imported"):
        own.load("reward.function", "leaves:f")
    with pytest.raises(ValueError, match=r"reward.function: holds:K is a class"):
        own.load("reward.function", "holds:K")
