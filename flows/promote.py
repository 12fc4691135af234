"""The `promote` flow: a person approves, then a run's checkpoint gets an alias in the registry."""

from __future__ import annotations

import re

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.states import Completed
from pydantic import Field

from flows.prefect_page import run_url
from flows.progress import say
from tasks.connection import OUTAGE, first_line
from tasks.registry import checkpoint_of, register
from tasks.tracking import Tracker

TAG_CHARACTERS = 5000  # MLflow refuses longer values
PATIENCE_S = 7 * 24 * 3600  # for the answer


class Approval(RunInput):
    """The answer that the suspended flow waits for."""

    approve: bool = Field(default=True, description="Off: nothing is registered.")
    note: str = Field(default="", description="Why; kept in the log and in the run's tags.")


@flow(name="promote", flow_run_name="{run}", persist_result=True)
def promote(
    run: str,
    model: str = "mempo",
    alias: str = "champion",
    experiment: str = "mempo",
    tracking: str = "",
) -> object:
    """Give a run's best checkpoint an alias in MLflow's registry, once a person has approved.

    While it waits it is suspended: no process, no actor and no GPU is held. Resume it on its page.

    Args:
        run: Id of the MLflow run.
        model: Name of the registered model.
        alias: What the version is called from then on, such as champion.
        experiment: MLflow experiment of the run.
        tracking: MLflow server that has the run. Empty: the default store.
    """
    for name, value in (("model", model), ("alias", alias)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
            raise ValueError(f"{name} '{value}': use letters, digits, '-', '_' and '.'")
    tracker = Tracker(tracking, experiment)
    try:
        found = tracker.run_info(run)
    except OUTAGE as error:
        raise ValueError(
            f"run {run}: {first_line(error)}; its page in MLflow has its id"
        ) from error
    if found.status != "FINISHED":
        raise ValueError(f"run {run} is {found.status}, not FINISHED; promote one that is done")
    checkpoint_of(*tracker.connect(), run)  # or there is nothing to approve
    measured = {k: v for k, v in sorted(found.metrics.items()) if k.startswith("eval")}
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in measured.items())
    link = run_url(tracker, run)
    shown = f"[{found.name}]({link})" if link else found.name
    asked = f"Shall {shown} be `{alias}` of `{model}`?"
    create_markdown_artifact(
        f"{asked}\n\n| metric | value |\n| --- | --- |\n{rows}", key=f"promote-{run[:8]}"
    )
    answer = suspend_flow_run(
        wait_for_input=Approval.with_initial_data(description=asked),
        key=f"approve-{run}",
        timeout=PATIENCE_S,
    )
    told = f"{alias}: {answer.approve} {answer.note}".strip()
    tracker.set_tags(run, {"mempo.promotion": told[:TAG_CHARACTERS]})
    if not answer.approve:
        say(f"not approved: {answer.note or 'no reason given'}")
        return Completed(name="Rejected", message=answer.note or "not approved")
    version = register(tracker, run, model, alias)
    say(f"version {version} of {model} is {alias} now")
    return Completed(message=f"version {version} of {model} is {alias}")
