"""Names that say what a run is: preset, algorithm, what differs from the preset, seed."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import PurePath

from conf.load import flatten, load, presets, setting_names
from conf.text import ConfigError
from mempo.config import Experiment

SHOWN = 3  # differences in a name
_CHARACTERS = 24  # of a value in a name
_LEFT_OUT = ("cluster", "tracking", "preset", "seed")


def changes(experiment: Experiment) -> dict[str, object]:
    """The settings that differ from the shipped preset, by dotted name.

    Where it runs, where it is recorded and its seed are left out. A preset file of one's own has
    nothing to be compared with, so nothing differs from it.

    >>> changes(load("demo", overrides=["learner.lr=1e-4"], seed=7))
    {'learner.lr': 0.0001}
    """
    shipped = _shipped(experiment.preset)
    if shipped is None:
        return {}
    return {
        setting: value
        for setting, value in flatten(experiment).items()
        if setting.partition(".")[0] not in _LEFT_OUT and value != shipped[setting]
    }


def run_name(experiment: Experiment, kind: str) -> str:
    """What a run of the kind is called where nobody names it.

    >>> run_name(load("demo", overrides=["learner.lr=1e-4"], seed=7), "train")
    'demo mempo lr=0.0001 seed 7'
    """
    found = changes(experiment)
    if kind == "evaluate":
        found.pop("iterations", None)  # there are none
    if kind == "sft" and experiment.sft.model == experiment.policy.model:
        found.pop("policy.model", None)  # a cold start begins there
    if kind != "sft":  # nothing else reads that section
        found = {name: value for name, value in found.items() if not name.startswith("sft.")}
    trains = kind == "train" and experiment.iterations > 0
    words = [experiment.preset, experiment.algorithm if trains else kind]
    words += [f"{_short(name, kind)}={_brief(found[name])}" for name in list(found)[:SHOWN]]
    if len(found) > SHOWN:
        words.append(f"+{len(found) - SHOWN}")
    return " ".join([word for word in words if word] + [f"seed {experiment.seed}"])


@lru_cache
def _shipped(preset: str) -> dict[str, object] | None:
    if preset not in presets():
        return None
    try:
        return flatten(load(preset))
    except ConfigError:  # spoiled since; that is for whoever loads it to report
        return None


@lru_cache
def _ambiguous(kind: str) -> frozenset[str]:
    """Last parts that several settings of such a run share, such as `model`."""
    read = [name for name in setting_names() if kind == "sft" or not name.startswith("sft.")]
    count = Counter(name.rpartition(".")[2] for name in read)
    return frozenset(name for name, times in count.items() if times > 1)


def _short(setting: str, kind: str) -> str:
    last = setting.rpartition(".")[2]
    return setting if last in _ambiguous(kind) else last


def _brief(value: object) -> str:
    """A value in few characters: numbers as people write them, a path by its end."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ",".join(map(_brief, value))
    text = str(value)
    if "/" in text and "://" not in text:
        text = PurePath(text).name or text
    text = text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
    return text or "none"
