"""The flows that Prefect starts by themselves for what is named, not spelled out: studies."""

from __future__ import annotations

from prefect import flow

from conf.study import load_study
from flows.ablate import run_study
from flows.recording import RunResult
from tasks import stages


@flow(name="ablate", task_runner=stages.ray_runner(), persist_result=False)
def ablate(
    study: str = "demo",
    seeds: list[int] | None = None,
    settings: list[str] | None = None,
    cluster: str = "local",
    resume: str = "",
) -> RunResult:
    """Run a study: its variants side by side on the same seeds and questions, then compared.

    Args:
        study: Name of the study.
        seeds: Seeds in place of the study's.
        settings: Changes to every variant, each as section.setting=value.
        cluster: Where it runs.
        resume: Id of the study's MLflow run to go on with; empty: a new one.
    """
    plan = load_study(study, seeds=seeds or None, cluster=cluster, overrides=settings or [])
    done = run_study(plan, resume)
    return RunResult(done.run_id, "", report=done.report, table=done.table)
