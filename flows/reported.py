"""What a report has to know of each run beside its numbers: its name, its start, its weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from conf.load import NOT_HASHED
from conf.study_file import MODEL
from tasks import store
from tasks.records import RunInfo

LISTED = 6  # settings that a note names


def methods(
    infos: Mapping[str, RunInfo], starts: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """How tables and pictures call each run, and notes on what they could mix up.

    A run is called by its method. Where the runs of a method differ in a setting that decides
    results (the seed and the policy they start from aside), each is called by the values of as
    many settings as tell them apart, too: 'MemPO (memory.weight=0.5)'. Settings that one of the
    runs has no record of are not compared, nor is the cold start itself, which shares the name SFT
    with its evaluation. `starts`: the policy that a run began from, by run.
    """
    from mempo.evaluation.tables import BASELINE

    named = {r: info.tags.get("mempo.method", info.name) for r, info in infos.items()}
    notes: list[str] = []
    for method in dict.fromkeys(named.values()):
        mine = [r for r in infos if named[r] == method and infos[r].kind != "sft"]
        settings = _differing([infos[r].params for r in mine])
        if not settings:
            continue
        telling = _telling(settings, [infos[r].params for r in mine])
        for r in mine:
            values = ", ".join(f"{name}={infos[r].params[name]}" for name in telling)
            named[r] = f"{method} ({values})"
        listed = ", ".join(settings[:LISTED]) + (", ..." if len(settings) > LISTED else "")
        alone = f"; there is no one {method} to compare with" if method == BASELINE else ""
        notes.append(f"the runs of {method} differ in {listed} and are told apart{alone}")
    measured = [r for r, info in infos.items() if info.kind != "sft"]
    again = Counter((named[r], infos[r].tags.get("mempo.seed", "0"), starts[r]) for r in measured)
    for (method, seed, _), count in again.items():
        if count > 1:
            notes.append(f"{method} seed {seed} was run {count} times: its runs count as one")
    return named, notes


def _differing(params: list[dict[str, str]]) -> list[str]:
    """The settings that all have and that are not the same in all."""
    first, *others = params or [{}]
    return [
        name
        for name, value in first.items()
        if name.partition(".")[0] not in NOT_HASHED
        and name not in ("seed", MODEL)
        and all(name in other for other in others)
        and any(other[name] != value for other in others)
    ]


def _telling(settings: list[str], params: list[dict[str, str]]) -> list[str]:
    """As few of the settings, in their order, as tell apart what all of them do."""

    def groups(names: list[str]) -> int:
        return len({tuple(p[name] for name in names) for p in params})

    kept: list[str] = []
    for name in settings:
        if groups([*kept, name]) > groups(kept):
            kept.append(name)
    return kept


def start_of(info: RunInfo) -> str:
    """The policy that a run began from: a study's name of it, or the model."""
    return info.tags.get("mempo.start") or info.params.get(MODEL, "")


def starts_column(infos: Mapping[str, RunInfo]) -> dict[str, dict[str, str]]:
    """The column `start` by run: where a method has a seed from several policies."""
    begun: dict[tuple[str, str], set[str]] = {}
    for info in infos.values():
        run = (info.tags.get("mempo.method", info.name), info.tags.get("mempo.seed", "0"))
        begun.setdefault(run, set()).add(start_of(info))
    several = any(len(of_run) > 1 for of_run in begun.values())
    return {r: {"start": start_of(info)} for r, info in infos.items()} if several else {}


def round_of(info: RunInfo) -> int:
    """Iterations in which each number of objectives has its turn; 1 for a cold start."""
    objectives = info.params.get("environment.objectives", "[1]")
    return 1 if info.kind == "sft" else len(json.loads(objectives))


def policy_columns(info: RunInfo) -> dict[str, Any]:
    """Which weights a run evaluated, and how.

    history  `agent.history`, empty for agents without one
    policy   the evaluated weights: a run's own last checkpoint, or what it began from
    trained  whether it trained them itself
    """
    remembers = info.params.get("agent.kind") == "self_memory"
    iterations = int(info.params.get("iterations", 0))
    own = store.checkpoint_folder(info.run_id, iterations)
    return {
        "history": info.params.get("agent.history", "") if remembers else "",
        "policy": _weights(str(own) if iterations else info.params.get(MODEL, "")),
        "trained": iterations > 0,
    }


def _weights(model: str) -> str:
    """A checkpoint by its run and iteration, wherever the store lies; any other model as it is."""
    parts = PurePosixPath(model).parts
    return "/".join(parts[-3:]) if parts[-2:-1] == ("checkpoints",) else model


def credited(info: RunInfo, trajectory: dict[str, Any]) -> dict[str, Any]:
    """A trajectory as the page shows it: without advantages where the run's loss is DPO's.

    DPO learns from pairs; the advantages in its rollout files train nothing.
    """
    if info.tags.get("mempo.algorithm") != "dpo":
        return trajectory
    steps = [step | {"adv_mem": None} for step in trajectory["steps"]]
    return trajectory | {"advantage": None, "steps": steps}
