"""A study's record in MLflow: what its run is asked to do, and which run a resume goes on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256 as _sha256
from typing import TYPE_CHECKING, Any

from conf.load import NOT_HASHED, flatten, sha256
from conf.study import Child, Study
from mempo import own
from mempo.config import Experiment
from tasks import records
from tasks.connection import OUTAGE, first_line

if TYPE_CHECKING:
    from tasks.records import RunInfo
    from tasks.tracking import Kind, Tracker

PLAN = "study.json"  # artifact of an ablation: what it was asked to run
AUTO = "auto"


def plan_of(study: Study) -> dict[str, Any]:
    """What decides a study's results, as JSON: per child its label, origin and settings.

    A function of one's own stands there twice: by its path and, as '<setting> (code)', by the
    sha256 of its file. Raises ValueError where it cannot be loaded.
    """
    return {
        "study": study.name,
        "best": asdict(study.best) if study.best else None,
        "children": {
            child.name: {
                "method": child.method,
                "from": child.source,
                **{
                    name: value
                    for name, value in flatten(child.experiment).items()
                    if name.partition(".")[0] not in NOT_HASHED
                },
                **{f"{name} (code)": code for name, code in own.digests(child.experiment).items()},
            }
            for child in study.children
        },
    }


def plan_tags(study: Study) -> dict[str, str]:
    """Tags by which the runs of the same study with the same children are found."""
    canonical = json.dumps(plan_of(study), sort_keys=True)
    return {
        "mempo.study": study.name,
        "mempo.study_sha256": _sha256(canonical.encode()).hexdigest(),
    }


def child_tags(child: Child) -> dict[str, str]:
    """Tags of a child's run beside those of every run: its place in the study."""
    return {"mempo.variant": child.variant, "mempo.start": child.start}


def place(child: Child, experiment: Experiment) -> tuple[str, ...]:
    """What a run must agree in to stand for `child`, `experiment` being what the child runs.

    Variant, start, seed and sha256 of the configuration, then a sha256 a function of one's own
    ('' where there is none): a run made by other code is another run.
    """
    code = own.digests(experiment)
    each = (code.get(setting, "") for setting in own.PARAMETERS)
    return child.variant, child.start, str(child.seed), sha256(experiment), *each


def place_of(run: RunInfo) -> tuple[str, ...]:
    """`place` as the tags of a run tell it."""
    names = ("mempo.variant", "mempo.start", "mempo.seed", "mempo.config_sha256")
    code = (f"mempo.own.{setting}" for setting in own.PARAMETERS)
    return tuple(run.tags.get(name, "") for name in (*names, *code))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first thing in which two plans differ, in words; '' where they are the same."""
    if old["study"] != new["study"]:
        return f"it ran the study {old['study']!r}, not {new['study']!r}"
    before, now = old["children"], new["children"]
    for name in before:
        if name not in now:
            return f"it has {name!r}, which the study now lacks (see variants, starts, seeds)"
    for name, child in now.items():
        if name not in before:
            return f"it lacks {name!r}, which the study now has (see variants, starts, seeds)"
        for setting in {**child, **before[name]}:
            was, is_now = before[name].get(setting), child.get(setting)
            if was != is_now:
                return f"setting '{setting}' of {name!r} was {was!r} and is {is_now!r} now"
    if old["best"] != new["best"]:
        return f"'best' was {old['best']!r} and is {new['best']!r} now"
    return ""


def run_to_resume(tracker: Tracker, study: Study, resume: str) -> str:
    """The id of the MLflow run that `--resume` means: that very run, or with 'auto' the newest.

    Raises:
        ValueError: one line; the run is unknown, no ablation, of another study or of other
            settings, still going on or done; or 'auto' finds none.
    """
    return find_run(tracker, asked_of(study), resume)


@dataclass(frozen=True)
class Asked:
    """What a study or a sweep is asked to do, and how its runs are told from others."""

    kind: Kind
    noun: str  # 'study' or 'sweep'
    what: str  # a run of it, as in 'that is no ablation'
    name: str
    tags: dict[str, str]
    file: str  # the artifact that holds the plan
    plan: dict[str, Any]
    difference: Callable[[Mapping[str, Any], Mapping[str, Any]], str]
    unfinished: Callable[[RunInfo], bool]


def asked_of(study: Study) -> Asked:
    """A study, as `find_run` looks for its runs."""
    return Asked(
        "ablate",
        "study",
        "ablation",
        study.name,
        plan_tags(study),
        PLAN,
        plan_of(study),
        difference,
        _unfinished,
    )


def find_run(tracker: Tracker, asked: Asked, resume: str) -> str:
    """The run that `resume` means, as in `run_to_resume`; raises ValueError likewise."""
    try:
        runs = tracker.find({"mempo.kind": asked.kind})
        if resume == AUTO:
            return _newest(tracker, asked, runs)
        run = next((run for run in runs if run.run_id == resume), None) or tracker.run_info(resume)
    except OUTAGE as error:
        raise ValueError(
            f"--resume {resume}: {first_line(error)}; `mempo up` shows the runs and their ids"
        ) from error
    if run.kind != asked.kind:
        kind = f"a run of kind {run.kind!r}" if run.kind else "a run of something else"
        raise ValueError(
            f"--resume {resume}: that is {kind}, no {asked.what}; give the {asked.noun}'s own run"
        )
    if run not in runs:
        raise ValueError(
            f"--resume {resume}: that run is not in the MLflow experiment "
            f"{tracker.experiment!r}; set tracking.experiment to the one that it is in"
        )
    differs = asked.difference(_plan(tracker, asked, run), asked.plan)
    if differs:
        raise ValueError(
            f"--resume {resume}: {differs}; give the {asked.noun} and options that it was started "
            "with, or start anew without --resume"
        )
    try:
        tracker.check_idle(run)
    except ValueError as error:
        raise ValueError(f"--resume: {error}") from None
    if not asked.unfinished(run):
        raise ValueError(
            f"--resume {resume}: all of that {asked.noun} is done; `mempo report {resume}` shows it"
        )
    return resume


def _newest(tracker: Tracker, asked: Asked, runs: list[RunInfo]) -> str:
    same = [run for run in runs if asked.tags.items() <= run.tags.items()]
    for run in same:
        try:
            tracker.check_idle(run)
        except ValueError:
            continue  # somebody is at it
        if asked.unfinished(run):
            return run.run_id
    reason = f"no unfinished run of the {asked.noun} {asked.name!r} with these settings"
    others = [r for r in runs if r.tags.get("mempo.study") == asked.name and asked.unfinished(r)]
    if same and same[0].status == "RUNNING":
        reason += f" (run {same[0].run_id} still goes on)"
    elif others:
        differs = asked.difference(_plan(tracker, asked, others[0]), asked.plan)
        reason += f" (run {others[0].run_id} is not done, but {differs})"
    raise ValueError(f"--resume auto: {reason}; start it without --resume")


def _unfinished(run: RunInfo) -> bool:
    """Whether something of a study's run is left to do, a failed child included."""
    return run.status != "FINISHED" or bool(run.tags.get("mempo.failed"))


def _plan(tracker: Tracker, asked: Asked, run: RunInfo) -> dict[str, Any]:
    plan = records.read_json(tracker.connect()[0], run.run_id, asked.file)
    if not plan:
        raise ValueError(
            f"--resume {run.run_id}: that run has no record of its {asked.noun} ({asked.file}); "
            "start anew"
        )
    return plan
