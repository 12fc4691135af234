"""Functions of your own, given by import path: a reward, a memory reward, an agent, a tool.

    reward.function     (trajectory) -> float
    memory.function     (question, steps, p_mem_S, p_full_S) -> [S] floats
    agent.function      (agent, codec, question, head, steps) -> token ids
    environment.tool    (question, query) -> str

A path is `my_pkg.mod:name`. What each function is given, in which units, and when it is called:
docs/own.md. Here they are found, checked and called; every complaint is a ValueError of one line
that names the setting.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib import import_module
from math import isinf
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mempo.config import Experiment

Setting = Literal["reward.function", "memory.function", "agent.function", "environment.tool"]

PARAMETERS: dict[Setting, tuple[str, ...]] = {
    "reward.function": ("trajectory",),
    "memory.function": ("question", "steps", "p_mem_S", "p_full_S"),
    "agent.function": ("agent", "codec", "question", "head", "steps"),
    "environment.tool": ("question", "query"),
}


def functions(experiment: Experiment) -> dict[Setting, str]:
    """The import paths that an experiment names; without those that are empty."""
    paths: dict[Setting, str] = {
        "reward.function": experiment.reward.function,
        "memory.function": experiment.memory.function,
        "agent.function": experiment.agent.function,
        "environment.tool": experiment.environment.tool,
    }
    return {setting: path for setting, path in paths.items() if path}


def check(experiment: Experiment) -> None:
    """Import every function that an experiment names. Raises as `load` does."""
    for setting, path in functions(experiment).items():
        load(setting, path)


def load(setting: Setting, path: str) -> Callable[..., Any]:
    """The function at `path`, 'my_pkg.mod:name'.

    Its parameters have to be those of `PARAMETERS`, by name and in that order, so that swapped
    ones are found at once; more are welcome where they have defaults.

    Raises:
        ValueError: the path is malformed, the module is not there or cannot be imported, it has
            no such name, or what it names is no function with these parameters.
    """
    module_name, _, name = path.partition(":")
    if not name.isidentifier() or not all(p.isidentifier() for p in module_name.split(".")):
        raise ValueError(f"{setting}: '{path}' is no import path; write my_pkg.mod:name")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:  # a module of the user's own may raise anything
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacks and f"{module_name}.".startswith(f"{lacks}."):
            raise ValueError(
                f"{setting}: there is no module {lacks} for '{path}'; correct the path, install "
                "the module, or put its folder on PYTHONPATH"
            ) from None
        raise ValueError(
            f"{setting}: module {module_name} cannot be imported ({_reason(error)}); mend it"
        ) from error
    if not hasattr(module, name):
        raise ValueError(
            f"{setting}: module {module_name} has no '{name}'; define it there, or correct the path"
        )
    function = getattr(module, name)
    if inspect.isclass(function):
        raise ValueError(f"{setting}: {path} is a class; write def {name}(...) instead")
    wrong = _misfit(function, PARAMETERS[setting])
    if wrong:
        raise ValueError(
            f"{setting}: {path} {wrong}; write def {name}({', '.join(PARAMETERS[setting])})"
        )
    return function


def call(setting: Setting, path: str, where: str, *args: Any) -> Any:
    """What the function returns.

    Raises:
        ValueError: it raised; names the function, `where` (question and rollout) and the reason.
    """
    function = load(setting, path)
    try:
        return function(*args)
    except (Exception, SystemExit) as error:  # a function of the user's own may raise anything
        raise ValueError(f"{setting}: {path} failed on {where} ({_reason(error)})") from error


def numbers(setting: Setting, path: str, where: str, values: Any, count: int) -> list[float]:
    """`count` returned values as floats, each finite or NaN for "none".

    None is no number: a function that forgets to return would else reject every rollout.

    Raises:
        ValueError: another count, or a value that is no number, infinite or beyond a float.
    """
    try:
        found = list(values) if isinstance(values, Iterable) else [values]
    except Exception as error:  # an array without a dimension, or the user's own iterator
        raise ValueError(
            f"{setting}: {path} returned a {type(values).__name__} that cannot be read on {where} "
            f"({_reason(error)}); return {'a float' if count == 1 else f'a list of {count} floats'}"
        ) from error
    if len(found) != count:
        raise ValueError(
            f"{setting}: {path} returned {len(found)} values on {where}; return {count}"
        )
    read: list[float] = []
    for value in found:
        told = ""
        if not isinstance(value, Real | np.bool_):
            told = " ".join(repr(value).split())
        else:
            try:
                read.append(float(value))
            except OverflowError:
                told = f"an {type(value).__name__} that no float can hold"
            else:
                told = repr(value) if isinf(read[-1]) else ""
        if told:
            raise ValueError(
                f"{setting}: {path} returned {told} on {where}; return finite numbers, or NaN "
                "for none"
            )
    return read


def digest(setting: Setting, path: str) -> str:
    """sha256 of the file of the module that `path` names, in hex; 'unknown' without a file.

    What that module imports is not in it. Raises as `load` does.
    """
    load(setting, path)
    file = getattr(sys.modules[path.partition(":")[0]], "__file__", None)
    return sha256(Path(file).read_bytes()).hexdigest() if file else "unknown"


def digests(experiment: Experiment) -> dict[Setting, str]:
    """`digest` of every function that an experiment names. Raises as `load` does."""
    return {setting: digest(setting, path) for setting, path in functions(experiment).items()}


def _misfit(function: object, wanted: tuple[str, ...]) -> str:
    """What is wrong with a function that is to be called with `wanted`; "" where nothing is."""
    if not callable(function):
        return f"is a {type(function).__name__}, no function"
    if inspect.iscoroutinefunction(function):
        return "is async, and nobody would await it"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something compiled
        return "does not tell its parameters"
    try:
        # Each name bound as the value of the parameter that takes its place.
        bound = signature.bind(*wanted).arguments
    except TypeError:
        bound = {}
    return "" if bound == {name: name for name in wanted} else f"takes {_shown(signature)}"


def _shown(signature: inspect.Signature) -> str:
    """Without annotations, which may be longer than a line."""
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
