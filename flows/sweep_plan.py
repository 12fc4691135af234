"""A sweep's record in MLflow: what it is asked to do, and what its trials have come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256 as _sha256
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from conf.load import NOT_HASHED, flatten
from conf.sweep import Sweep
from flows.plan import Asked, find_run
from mempo import own
from mempo.config.space import Dimension
from tasks import records

if TYPE_CHECKING:
    from tasks.records import RunInfo
    from tasks.tracking import Tracker

SWEEP = "sweep.json"  # artifact of a sweep: what it was asked to do


def plan_of(sweep: Sweep) -> dict[str, Any]:
    """What decides a sweep's results, as JSON: its rules, its space, the settings of all trials.

    A function of one's own stands there twice, as in `flows.plan`. Raises ValueError where it
    cannot be loaded.
    """
    first = sweep.first
    searched = {dimension.setting for dimension in sweep.space}
    plan = {
        "sweep": sweep.name,
        "description": sweep.description,
        "method": sweep.method,
        "trials": sweep.trials,
        "seeds": list(sweep.seeds),
        "metric": sweep.metric,
        "prune": sweep.prune,
        "space": {dimension.setting: asdict(dimension) for dimension in sweep.space},
        "settings": {
            name: value
            for name, value in flatten(first).items()
            if name.partition(".")[0] not in NOT_HASHED and name not in {"seed", *searched}
        }
        | {f"{name} (code)": code for name, code in own.digests(first).items()},
    }
    return json.loads(json.dumps(plan))  # tuples are lists, as they will be when it is read


def plan_tags(sweep: Sweep) -> dict[str, str]:
    """Tags by which the runs of the same sweep are found."""
    plan = plan_of(sweep)
    del plan["description"]  # it decides nothing
    canonical = json.dumps(plan, sort_keys=True)
    return {
        "mempo.study": sweep.name,
        "mempo.study_sha256": _sha256(canonical.encode()).hexdigest(),
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first thing in which two plans differ, in words; '' where they are the same."""
    if old["sweep"] != new["sweep"]:
        return f"it ran the sweep {old['sweep']!r}, not {new['sweep']!r}"
    for key in ("method", "trials", "seeds", "metric", "prune"):
        if old[key] != new[key]:
            return f"{key!r} was {old[key]!r} and is {new[key]!r} now"
    for what, place in (("'space' of '{}'", "space"), ("setting '{}'", "settings")):
        was, now = old[place], new[place]
        for name in {**now, **was}:
            if was.get(name) != now.get(name):
                told = f"was {_short(was.get(name))} and is {_short(now.get(name))} now"
                return f"{what.format(name)} {told}"
    return ""


def run_to_resume(tracker: Tracker, sweep: Sweep, resume: str) -> str:
    """The id of the MLflow run that `--resume` means, as in `flows.plan.run_to_resume`.

    A sweep that is FINISHED is done: its failed trials stay failed. Raises ValueError in one line.
    """
    asked = Asked(
        "sweep",
        "sweep",
        "sweep",
        sweep.name,
        plan_tags(sweep),
        SWEEP,
        plan_of(sweep),
        difference,
        lambda run: run.status != "FINISHED",
    )
    return find_run(tracker, asked, resume)


def _short(value: Any) -> str:
    """A dimension as its file says it; anything else as it is."""
    if not isinstance(value, dict):
        return repr(value) if value is not None else "not there"
    if value["choices"]:
        return repr(value["choices"])
    kept = {key: value[key] for key in ("low", "high", "step", "log") if value[key]}
    return repr({"low": value["low"], **kept})


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: `value` is that of a complete one, `by_seed` what was measured of it."""

    state: str  # tasks.search.State; '': it is not over
    value: float = nan
    by_seed: dict[int, float] | None = None
    reason: str = ""

    def tags(self) -> dict[str, str]:
        """For the trial's run; they are written at once, so a kill leaves all or none."""
        told = {"value": self.value, "by_seed": self.by_seed or {}, "reason": self.reason}
        return {"mempo.state": self.state, "mempo.outcome": json.dumps(told)}


def outcome_of(run: RunInfo) -> Outcome:
    """What the tags of a trial's run tell."""
    state = run.tags.get("mempo.state", "")
    if not state:
        return Outcome("")
    told = json.loads(run.tags["mempo.outcome"])
    by_seed = {int(seed): value for seed, value in told["by_seed"].items()}
    return Outcome(state, told["value"], by_seed, told["reason"])


@dataclass(frozen=True)
class Trial:
    """A trial as MLflow has it."""

    number: int
    point: dict[str, Any]
    run: RunInfo
    outcome: Outcome

    @property
    def name(self) -> str:
        return trial_name(self.number)

    @property
    def state(self) -> str:
        """'complete', 'pruned', 'failed', 'running' or 'cut off'."""
        return self.outcome.state or ("running" if self.run.status == "RUNNING" else "cut off")


def trial_name(number: int) -> str:
    """How people, tables and pictures call a trial."""
    return f"trial {number}"


def trial_tags(number: int, point: dict[str, object], sweep_run: str) -> dict[str, str]:
    """Tags of a trial's run beside those of every run."""
    return {
        "mempo.trial": str(number),
        "mempo.sweep": sweep_run,
        "mempo.point": json.dumps(point),
    }


def trials_of(tracker: Tracker, sweep_run: str) -> list[Trial]:
    """The trials of a sweep in order; of two runs of one, the later counts."""
    runs = tracker.find({"mlflow.parentRunId": sweep_run, "mempo.kind": "trial"})
    found = {int(run.tags["mempo.trial"]): run for run in reversed(runs)}
    return [
        Trial(number, json.loads(run.tags["mempo.point"]), run, outcome_of(run))
        for number, run in sorted(found.items())
    ]


def ranked(trials: list[Trial]) -> list[Trial]:
    """The trials that were measured to their end, best first; of equals the earlier one.

    Failed and pruned trials, and those without a finite value, are no candidates.
    """
    measured = [t for t in trials if t.outcome.state == "complete" and isfinite(t.outcome.value)]
    return sorted(measured, key=lambda trial: (-trial.outcome.value, trial.number))


def space_of(plan: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """The space that a plan tells of."""
    return tuple(
        Dimension(**(dimension | {"choices": tuple(dimension["choices"])}))
        for dimension in plan["space"].values()
    )


def read_plan(tracker: Tracker, run_id: str) -> dict[str, Any]:
    """The plan of a sweep's run; empty where it is no sweep, or has none yet."""
    return records.read_json(tracker.connect()[0], run_id, SWEEP) or {}
