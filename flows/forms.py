"""The flows that only Prefect's page starts: what is named there rather than spelled out.

`ablate` and `sweep` share their names on purpose with the flows of the commands: Prefect lists
flows by name, and who looks for sweeps wants all of them, however they were started.
"""

from __future__ import annotations

from prefect import flow

from conf.study import load_study
from conf.sweep import load_sweep
from flows.ablate import AblationResult, run_study
from flows.plan import run_to_resume as study_to_resume
from flows.recording import RunResult
from flows.resuming import run_to_resume, settings_of
from flows.sweep import SweepResult, run_sweep
from flows.sweep_plan import run_to_resume as sweep_to_resume
from flows.train import train
from mempo.config import Experiment
from tasks import stages
from tasks.tracking import Tracker


@flow(name="ablate", flow_run_name="{study}", task_runner=stages.ray_runner(), persist_result=False)
def ablate(
    study: str = "demo",
    seeds: list[int] | None = None,
    settings: list[str] | None = None,
    cluster: str = "local",
    resume: str = "",
) -> AblationResult:
    """Run a study: variants on the same seeds and questions, and compare them.

    Args:
        study: Name of the study.
        seeds: Seeds in place of the study's.
        settings: Changes to every variant, each as section.setting=value of a setting that exists,
            without passwords.
        cluster: Where it runs.
        resume: Id of the study's MLflow run to go on with, or auto. Empty: a new one.
    """
    plan = load_study(study, seeds=seeds or None, cluster=cluster, overrides=settings or [])
    if resume:
        resume = study_to_resume(_tracker(plan.children[0].experiment), plan, resume)
    return run_study(plan, resume)


@flow(name="sweep", flow_run_name="{sweep}", task_runner=stages.ray_runner(), persist_result=False)
def sweep(
    sweep: str = "demo",
    seeds: list[int] | None = None,
    settings: list[str] | None = None,
    cluster: str = "local",
    resume: str = "",
) -> SweepResult:
    """Search for the best settings, and write them as a preset.

    Args:
        sweep: Name of the sweep.
        seeds: Seeds of each trial in place of the sweep's.
        settings: Changes to every trial, each as section.setting=value of a setting that exists,
            without passwords.
        cluster: Where it runs.
        resume: Id of the sweep's MLflow run to go on with, or auto. Empty: a new one.
    """
    plan = load_sweep(sweep, seeds=seeds or None, cluster=cluster, overrides=settings or [])
    if resume:
        resume = sweep_to_resume(_tracker(plan.first), plan, resume)
    return run_sweep(plan, resume)


@flow(name="resume", flow_run_name="{run}", task_runner=stages.ray_runner(), persist_result=False)
def resume(run: str, cluster: str = "local") -> RunResult:
    """Go on with a training run that was cut off, from its last checkpoint.

    Args:
        run: Id of its MLflow run.
        cluster: Where it goes on; local is where it was.
    """
    experiment = settings_of(run, cluster=cluster)
    return train(experiment, resume=run_to_resume(_tracker(experiment), experiment, run))


def _tracker(experiment: Experiment) -> Tracker:
    return Tracker(experiment.tracking.uri, experiment.tracking.experiment)
