"""What a report says of a sweep, from MLflow alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conf.sweep_file import METRIC
from flows.sweep_plan import Trial, ranked, read_plan, space_of, trials_of
from mempo.config.space import Dimension, shown_point
from tasks.tracking import Tracker

if TYPE_CHECKING:
    import pandas as pd

    from mempo.evaluation.sweeps import SweepTable


@dataclass(frozen=True)
class Swept:
    """A sweep in a report: its table, and the runs of its best trial and of the runner-up."""

    title: str
    table: SweepTable
    runs: list[str]
    winner: str  # how tables call the best trial; empty where none has a value
    baseline: str  # the runner-up; empty where there is none
    choice: list[str]  # which trial is the best, in words
    notes: list[str]

    def table_with(self, evaluations: pd.DataFrame) -> SweepTable:
        """The table with what came out: the best, and what it gains over the runner-up."""
        return replace(self.table, findings=(*self.choice, *self._gain(evaluations)))

    def _gain(self, evaluations: pd.DataFrame) -> list[str]:
        """What the best trial gains over the runner-up by the metric that chose it, in words."""
        from mempo.evaluation.tables import METRICS, against_baseline, interval, t_interval

        area, objectives, metric = metric_parts(self.table.metric)
        mode = "sampled" if area == "eval_sampled" else "greedy"
        if not self.baseline or evaluations.empty:
            return []
        found = against_baseline(
            evaluations, self.winner, metric, mode, objectives, baseline=self.baseline
        )
        if found is None:
            return []
        form = METRICS[metric][2]
        t = t_interval(found, form)
        told = interval(found.mean, found.low, found.high, form) + (f" (t {t})" if t else "")
        return [
            f"The best over the runner-up, {self.winner} - {self.baseline} by "
            f"{self.table.metric}: {told}, paired by seed and question. For the best of "
            f"{len(self.table.trials)} trials an interval is too kind."
        ]


def swept(tracker: Tracker, run_id: str) -> Swept | None:
    """What there is of a sweep, finished or not; None where the run is none."""
    import pandas as pd

    from mempo.evaluation.sweeps import SweepTable

    plan = read_plan(tracker, run_id)
    if not plan:
        return None
    space, trials = space_of(plan), trials_of(tracker, run_id)
    order = ranked(trials)
    rank = {trial.number: i for i, trial in enumerate(order, start=1)}
    columns = ["trial", "state", "rank", "value", "by_seed", "reason"]
    rows = pd.DataFrame(
        [_row(trial, space, rank) for trial in trials],
        columns=[*columns, *(dimension.setting for dimension in space)],
    ).astype({"rank": float, "value": float})
    table = SweepTable(
        plan["sweep"],
        plan["method"],
        plan["metric"],
        tuple(plan["seeds"]),
        space,
        rows,
        _importance(space, order),
    )
    best = order[:2]
    names = [*(trial.name for trial in best), "", ""]
    return Swept(
        f"{plan['sweep']}: {plan['description']}",
        table,
        [run_id for trial in best for run_id in _runs(tracker, trial)],
        names[0],
        names[1],
        _choice(order, plan["metric"]),
        _lost(trials),
    )


def metric_parts(metric: str) -> tuple[str, int, str]:
    """'eval_sampled/n4/f1' -> ('eval_sampled', 4, 'f1')."""
    match = METRIC.fullmatch(metric)
    assert match is not None, metric
    return match[1], int(match[2]), match[3]


def _row(trial: Trial, space: tuple[Dimension, ...], rank: dict[int, int]) -> dict[str, object]:
    seeds = trial.outcome.by_seed or {}
    return {
        "trial": trial.number,
        "state": trial.state,
        "rank": rank.get(trial.number),
        "value": trial.outcome.value if trial.outcome.state == "complete" else None,
        "by_seed": " ".join(f"{seed}: {value:.4f}" for seed, value in sorted(seeds.items())),
        "reason": trial.outcome.reason,
        **{dimension.setting: trial.point[dimension.setting] for dimension in space},
    }


def _importance(space: tuple[Dimension, ...], measured: list[Trial]) -> dict[str, float]:
    from tasks.search import importance

    points = [trial.point for trial in sorted(measured, key=lambda trial: trial.number)]
    values = [t.outcome.value for t in sorted(measured, key=lambda trial: trial.number)]
    return importance(space, points, values)


def _runs(tracker: Tracker, trial: Trial) -> list[str]:
    """The finished training runs of a trial, one a seed."""
    runs = tracker.find({"mlflow.parentRunId": trial.run.run_id}, "FINISHED")
    return list({run.tags.get("mempo.seed", ""): run.run_id for run in reversed(runs)}.values())


def _choice(order: list[Trial], metric: str) -> list[str]:
    if not order:
        return ["No trial has a value yet."]
    best = order[0]
    return [
        f"The best is {best.name} ({shown_point(best.point)}) with {metric} "
        f"{best.outcome.value:.4f}; it was chosen on the very questions that are reported, which "
        "flatters it."
    ]


def _lost(trials: list[Trial]) -> list[str]:
    return [f"{t.name} failed: {t.outcome.reason}" for t in trials if t.outcome.state == "failed"]
