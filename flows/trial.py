"""The `trial` flow: one point of a sweep, trained with each seed, as a run with child runs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import isfinite
from statistics import fmean

from prefect import flow

from conf.load import flatten, sha256
from conf.sweep import Sweep
from conf.text import ConfigError
from flows.progress import say
from flows.recording import Record, RunResult, recorded
from flows.sweep_plan import Outcome, Trial, trial_name, trial_tags
from flows.train import train
from flows.watching import watched
from mempo.config import Experiment
from tasks import stages
from tasks.records import RunInfo

REASON_CHARACTERS = 500


class TrialFailed(RuntimeError):
    """What ends the flow of a trial that has no value; its text is the reason."""


@flow(
    name="trial",
    flow_run_name="trial-{number}",
    task_runner=stages.ray_runner(),
    persist_result=False,
    validate_parameters=False,
)
def trial(
    sweep: Sweep, number: int, point: dict[str, object], parent: str, begun: Trial | None = None
) -> Outcome:
    """Measure one point; its outcome stands in the tags of its run before that is closed.

    Training is watched with the first seed only (`flows.watching`); where that is stopped, or a
    seed fails, the other seeds are not run.

    Args:
        sweep: what is searched.
        number: of the trial, from 0.
        point: its settings.
        parent: id of the sweep's MLflow run.
        begun: the trial as an earlier process left it: its run goes on, finished seeds are kept.

    Raises:
        TrialFailed: it has no value; with the reason.
    """
    experiments, problem = [sweep.first], ""
    try:
        experiments = [sweep.experiment(point, seed) for seed in sweep.seeds]
    except ConfigError as error:  # its settings do not go together
        problem = str(error)
    name = trial_name(number)
    with recorded(
        experiments[0],
        "trial",
        name=name,
        parent=parent,
        method=name,
        tags=trial_tags(number, point, parent),
        params=point,
        resume=begun.run.run_id if begun else "",
    ) as record:
        if begun and begun.outcome.state:  # cut off right before its run was closed
            outcome = begun.outcome
        elif problem:
            outcome = Outcome("failed", reason=problem[:REASON_CHARACTERS])
        else:
            outcome = _measured(sweep, name, experiments, record)
        record.tracker.set_tags(record.run_id, outcome.tags())
        if outcome.state == "failed":
            raise TrialFailed(outcome.reason)
    return outcome


def _measured(sweep: Sweep, name: str, experiments: list[Experiment], record: Record) -> Outcome:
    """The mean over the seeds, or why there is none."""
    by_seed: dict[int, float] = {}
    found: list[dict[str, float]] = []
    for i, experiment in enumerate(experiments):
        try:
            result = _seed(name, experiment, record, judged=i == 0)
        except Exception as error:  # the edge: a failed run is a failed trial, not a failed sweep
            reason = " ".join(f"seed {experiment.seed}: {_told(error)}".split())
            return Outcome("failed", by_seed=by_seed, reason=reason[:REASON_CHARACTERS])
        value = (result.metrics or {}).get(sweep.metric, float("nan"))
        if result.pruned:
            told = f" {value:.3f}" if isfinite(value) else ""
            reason = f"seed {experiment.seed}: {sweep.metric}{told} after iteration {result.pruned}"
            return Outcome("pruned", by_seed=by_seed, reason=f"stopped, {reason}")
        if not isfinite(value):
            reason = f"seed {experiment.seed}: {sweep.metric} is {value}"
            return Outcome("failed", by_seed=by_seed, reason=reason)
        by_seed[experiment.seed] = value
        found.append(result.metrics or {})
    means = {key: fmean(one.get(key, float("nan")) for one in found) for key in found[0]}
    record.log(means, experiments[0].iterations)
    return Outcome("complete", fmean(by_seed.values()), by_seed)


def _seed(name: str, experiment: Experiment, record: Record, *, judged: bool) -> RunResult:
    """Train with one seed, go on with a run that was cut off, or take over one that is over.

    Raises:
        TrialFailed: that run failed.
    """
    label = f"{name} seed {experiment.seed}"
    run = _earlier(experiment, record)
    if run and run.status == "FAILED":
        raise TrialFailed(run.tags.get("mempo.reason", "it failed"))
    if run and run.status == "FINISHED":
        say(f"taken over from run {run.run_id}", label)
        pruned = int(run.tags.get("mempo.pruned", 0))
        return RunResult(run.run_id, "", metrics=run.metrics, pruned=pruned)
    mine = record.tracker.run_info(record.run_id).tags
    # Where it was cut off before it had all its params it would stay a run without them.
    whole = run is not None and flatten(experiment).keys() <= run.params.keys()
    with nullcontext() if judged else watched(None):
        result: RunResult = train(
            experiment,
            name=label,
            parent=record.run_id,
            method=name,
            tags={key: mine[key] for key in ("mempo.trial", "mempo.sweep")},
            resume=run.run_id if run and whole else "",
        )
    if not result.pruned:
        return result
    return replace(result, metrics=record.tracker.run_info(result.run_id).metrics)


def _earlier(experiment: Experiment, record: Record) -> RunInfo | None:
    """The newest run of a trial with the seed and the settings of `experiment`."""
    tags = {
        "mlflow.parentRunId": record.run_id,
        "mempo.seed": str(experiment.seed),
        "mempo.config_sha256": sha256(experiment),
    }
    return next(iter(record.tracker.find(tags)), None)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, TrialFailed) else f"{type(error).__name__}: {error}"
