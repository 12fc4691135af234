"""A run once more: what it was made of, then and now, and whether the numbers come out again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from conf.load import load
from conf.text import ConfigError
from flows.doctor_data import Kind
from flows.fingerprint import inputs, packages
from mempo import own
from mempo.config import Experiment
from tasks import store
from tasks.connection import OUTAGE, first_line
from tasks.records import git_commit

if TYPE_CHECKING:
    import pandas as pd

    from tasks.tracking import Tracker

VOLATILE = ("time/", "system/")
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Origin:
    """A finished run: what it is made of, and how that differs now."""

    run_id: str
    kind: Kind
    experiment: Experiment
    facts: list[str]  # a line each: its commit, its data, its packages
    changed: list[str]  # of these the ones that are not so any more


def origin_of(tracker: Tracker, run_id: str) -> Origin:
    """What the run `run_id` was made of.

    Raises:
        ConfigError: one line; the run is unknown, not finished, of a kind that is no single run,
            or was recorded without its configuration.
    """
    store.run_folder(run_id)  # refuses what is no id
    try:
        run = tracker.run_info(run_id)
    except OUTAGE as error:
        raise ConfigError(
            f"reproduce {run_id}: {first_line(error)}; `mempo up` shows the runs and their ids"
        ) from error
    kind: Kind | None = next((k for k in KINDS if k == run.kind), None)
    if kind is None:
        raise ConfigError(
            f"reproduce {run_id}: a run of kind {run.kind or '?'!r} is many runs; reproduce one of "
            "them, or start it anew (`mempo ablate STUDY`)"
        )
    if run.status != "FINISHED":
        raise ConfigError(
            f"reproduce {run_id}: that run is {run.status}, so there is nothing to compare with"
        )
    client, _ = tracker.connect()
    try:
        config = Path(client.download_artifacts(run_id, "config.yaml"))
        listed = Path(client.download_artifacts(run_id, "packages.txt")).read_text()
    except OUTAGE as error:
        raise ConfigError(
            f"reproduce {run_id}: the run lacks config.yaml or packages.txt ({first_line(error)}); "
            "it was recorded by an earlier version"
        ) from error
    experiment = load(str(config))
    facts, changed = _compare(run.tags, experiment, listed)
    return Origin(run_id, kind, experiment, facts, changed)


def _compare(
    tags: dict[str, str], experiment: Experiment, listed: str
) -> tuple[list[str], list[str]]:
    commit, here = tags.get("mempo.git_commit", "unknown"), git_commit()
    facts = [f"configuration  sha256 {tags.get('mempo.config_sha256', '?')[:12]}"]
    facts.append(f"commit         {commit}")
    changed = [] if commit == here else [f"commit: this checkout is at {here}"]
    if commit == here and commit.endswith(("-dirty", "unknown")):
        changed.append(f"commit: {commit} does not say what the code was")
    then: dict[str, str] = json.loads(tags.get("mempo.inputs", "{}"))
    now = inputs(experiment)
    facts += [f"{setting:<14} sha256 {digest[:12]}" for setting, digest in then.items()]
    for setting in sorted(then.keys() | now.keys()):
        if then.get(setting) != now.get(setting):
            what = now.get(setting, "")[:12] or "not there"
            changed.append(f"{setting}: {then.get(setting, '')[:12] or 'none'} then, {what} now")
    for setting, code in own.digests(experiment).items():
        if (recorded := tags.get(f"mempo.own.{setting}")) != code:
            changed.append(
                f"{setting}: its file was {(recorded or 'none')[:12]}, is {code[:12]} now"
            )
    old, new = (dict(_split(line) for line in text.splitlines()) for text in (listed, packages()))
    differing = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    facts.append(f"packages       {len(old)}, in packages.txt of the run")
    shown = [f"{n} {old.get(n, 'none')} -> {new.get(n, 'none')}" for n in differing[:8]]
    if differing:
        more = f" and {len(differing) - 8} more" if len(differing) > 8 else ""
        changed.append(f"packages: {', '.join(shown)}{more}")
    return facts, changed


def differences(curves: pd.DataFrame, first: str, second: str) -> tuple[int, list[str]]:
    """Points of two runs compared, exactly: how many, and a line for every metric that differs.

    curves: run_id, iteration, metric, value. Times and the machine's load are left out: they are
    never the same.
    """
    kept = curves[~curves["metric"].str.startswith(VOLATILE)]
    table = kept.pivot_table(index=["metric", "iteration"], columns="run_id", values="value")
    table = table.reindex(columns=[first, second])
    gap = (table[first] - table[second]).abs()
    lines = []
    for metric, gaps in gap.groupby("metric"):
        parts = []
        if missing := int(gaps.isna().sum()):
            parts.append(f"{missing} of {len(gaps)} points are in one run only")
        if differing := int((gaps > 0).sum()):
            parts.append(f"{differing} of {len(gaps)} points differ, at most by {gaps.max():.3g}")
        if parts:
            lines.append(f"{metric}: {'; '.join(parts)}")
    return len(table), lines


def _split(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return name, version
