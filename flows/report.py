"""A report of runs, from MLflow alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.reported import (
    credited,
    methods,
    policy_columns,
    round_of,
    start_of,
    starts_column,
)
from flows.sweep_report import Swept, swept
from tasks import records, store
from tasks.records import RunInfo
from tasks.tracking import Tracker

COMPARED = "compared.json"  # artifact of an ablation: the runs that stand for its methods


def log_report(tracker: Tracker, run_id: str, folder: Path) -> tuple[str, str]:
    """Write a run's own report and keep it as the artifact `report`; (page, terminal table)."""
    page, table = report_runs(tracker, [run_id], folder)
    tracker.log_artifact(run_id, page.parent, "report")
    return str(page), table


def report_runs(
    tracker: Tracker, run_ids: list[str], folder: Path, *, into: str = "", baseline: str = ""
) -> tuple[Path, str]:
    """Write the report of runs; (page, terminal table).

    An ablation stands for the runs that it compared, or for its children while it is not done; a
    sweep for those of its best trial and the runner-up, beside a table and pictures of all trials.

    `into`: FILE#SECTION of a Markdown file whose marked section gets the table.
    `baseline`: the method that differences are to; without it a study's own, or GRPO.
    Raises ValueError where a run is unknown or has nothing to report, there is no such baseline,
    or the page or the section cannot be written.
    """
    import pandas as pd

    from mempo.evaluation.gains import difference_lines
    from mempo.evaluation.markdown import check_section, replace_section, results_markdown
    from mempo.evaluation.plots_learning import DRAWN
    from mempo.evaluation.report import write_report
    from mempo.evaluation.sweeps import trials_text
    from mempo.evaluation.tables import BASELINE, terminal_table

    target, _, section = into.partition("#")
    if into:
        check_section(Path(target), section)
    wanted: list[str] = []
    titles: list[str] = []
    notes: list[str] = []
    own: list[str] = []  # the baselines of the studies
    sweeps: list[Swept] = []
    for run_id in run_ids:
        searched = swept(tracker, run_id)
        compared = None if searched else _artifact(tracker, run_id, COMPARED)
        if searched:
            sweeps.append(searched)
            wanted += searched.runs
            titles.append(searched.title)
            notes += searched.notes
            own.append(searched.baseline or BASELINE)
        elif compared:
            wanted += compared["runs"]
            titles.append(compared["title"])
            notes += compared["notes"]
            own.append(compared.get("baseline") or BASELINE)
        else:
            wanted += _latest(tracker, run_id) or [run_id]
    infos = {run_id: tracker.run_info(run_id) for run_id in wanted}
    store.check_writable(folder, "--out")  # it makes the folder, so only for runs that are there
    tasks: list[dict[str, Any]] = []
    trajectories: list[dict[str, Any]] = []
    starts = starts_column(infos)
    names, mixed = methods(infos, {run_id: start_of(info) for run_id, info in infos.items()})
    notes += mixed
    for run_id, info in infos.items():
        who = {"method": names[run_id], "seed": int(info.tags.get("mempo.seed", 0))}
        of_run = who | starts.get(run_id, {}) | policy_columns(info)
        tasks += [of_run | row for row in _artifact(tracker, run_id, "evaluation/tasks.json")]
        for file in ("training/trajectories.json", "evaluation/trajectories.json"):
            found = _artifact(tracker, run_id, file)
            trajectories += [who | credited(info, trajectory) for trajectory in found]
    curves = tracker.curves(list(infos), DRAWN)
    if not curves.empty:
        seed = {r: int(i.tags.get("mempo.seed", 0)) for r, i in infos.items()}
        rounds = {r: round_of(i) for r, i in infos.items()}
        of_run = {"method": names, "seed": seed, "round": rounds}
        curves = curves.assign(**{name: curves["run_id"].map(of) for name, of in of_run.items()})
        if starts:
            start = {run_id: begun["start"] for run_id, begun in starts.items()}
            curves = curves.assign(start=curves["run_id"].map(start))
    evaluations = pd.DataFrame(tasks)
    if evaluations.empty and curves.empty and not sweeps:
        raise ValueError(f"nothing to report: runs {', '.join(wanted)} have logged no evaluation")
    if baseline and baseline not in set(names.values()):
        listed = ", ".join(dict.fromkeys(names.values()))
        raise ValueError(f"--baseline: there is no method {baseline!r} here, only {listed}")
    default = own[0] if own else BASELINE
    if not baseline and len(set(own)) > 1:
        raise ValueError(f"the studies compare with {' and '.join(own)}; choose by --baseline")
    baseline = baseline or default
    searches = [found.table_with(evaluations) for found in sweeps]
    page = write_report(
        folder,
        title=", ".join(titles or (i.name for i in infos.values())),
        evaluations=evaluations,
        curves=curves,
        trajectories=trajectories,
        notes=notes,
        facts=_facts(infos),
        baseline=baseline,
        sweeps=searches,
    )
    trials = [part for search in searches for part in (trials_text(search), "")]
    if evaluations.empty:
        return page, "\n".join([*trials, *notes])
    differences = [*difference_lines(evaluations, baseline), *notes]
    if into:
        asked = f" --baseline '{baseline}'" if baseline != default else ""
        source = (
            f"`mempo report {' '.join(run_ids)} --into {into}{asked}`, from git commit "
            + _facts(infos)["git commit"]
        )
        replace_section(
            Path(target), section, results_markdown(evaluations, differences, source=source)
        )
    return page, "\n".join([*trials, terminal_table(evaluations), "", *differences])


def _latest(tracker: Tracker, run_id: str) -> list[str]:
    """A run's children without those that were cut off or failed and then run anew."""
    children = [tracker.run_info(child) for child in tracker.children(run_id)]
    return [
        child.run_id
        for i, child in enumerate(children)
        if child.status in ("FINISHED", "RUNNING")
        or all(later.name != child.name for later in children[i + 1 :])
    ]


def _facts(infos: dict[str, RunInfo]) -> dict[str, str]:
    tags = [i.tags for i in infos.values()]

    def values(name: str) -> str:
        return ", ".join(sorted({t.get(name, "") for t in tags}))

    hashes = sorted({t.get("mempo.config_sha256", "")[:12] for t in tags})
    return {
        "runs": ", ".join(f"{i.name} ({r})" for r, i in infos.items()),
        "git commit": values("mempo.git_commit"),
        "preset": values("mempo.preset"),
        "seeds": values("mempo.seed"),
        "configurations (sha256)": ", ".join(hashes),
    }


def _artifact(tracker: Tracker, run_id: str, file: str) -> Any:
    """A JSON artifact of a run, empty where the run has none."""
    return records.read_json(tracker.connect()[0], run_id, file)
