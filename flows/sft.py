"""The `sft` flow: the cold start on scripted trajectories."""

from __future__ import annotations

import time
from pathlib import Path

from prefect import flow

from flows.connecting import connected
from flows.exporting import check_target, export
from flows.prefect_page import Progress, named
from flows.progress import say
from flows.recording import RunResult, recorded
from flows.report import log_report
from flows.stopping import stoppable
from mempo.config import Experiment
from mempo.evaluation.metrics import usd
from tasks import placement, stages, store
from tasks.environment import pick_threads


@flow(
    name="sft",
    flow_run_name=named("sft"),
    task_runner=stages.ray_runner(),
    persist_result=False,
)
def sft(experiment: Experiment, name: str = "", parent: str = "", out: str = "") -> RunResult:
    """Train a policy to follow the protocol, and to know what a memory is worth.

    Args:
        experiment: The whole configuration. It begins from sft.model, if any, else policy.model.
        name: Of the MLflow run; made from the settings by default.
        parent: id of the MLflow run that this one is a child of.
        out: Folder that gets the model without the optimiser's state. Empty: policy.model, so that
            training finds it, where that is a local folder that it did not begin from. An older
            export there is replaced; a folder that holds anything else is refused.
    """
    target = Path(out) if out else _folder_of_policy(experiment)
    if target is not None:
        check_target(target, "--out")
    if experiment.sft.model:
        policy = experiment.policy.model_copy(update={"model": experiment.sft.model})
        experiment = experiment.model_copy(update={"policy": policy})
    with connected([experiment], "sft"):
        return stoppable(_recorded, experiment, name, parent, target)


def _recorded(experiment: Experiment, name: str, parent: str, target: Path | None) -> RunResult:
    total = experiment.sft.steps + experiment.sft.final_steps
    cluster = experiment.cluster
    with (
        recorded(experiment, "sft", name=name, parent=parent, method="SFT") as record,
        placement.sft_model(experiment, pick_threads(cluster)) as models,
    ):
        facts = placement.wait(models.learners[0].facts.remote(), cluster, "cold-start data")
        for fact, value in facts.items():
            say(f"{fact}: {value}", "cold start")
        progress = Progress(total, "steps")
        for start in range(0, total, experiment.sft.chunk):
            stop = min(start + experiment.sft.chunk, total)
            begin = time.monotonic()
            metrics = stages.run(stages.cold_start, cluster, models, start, stop)
            metrics["time/train_s"] = time.monotonic() - begin
            metrics["cost/usd"] = usd(metrics, experiment.price)
            record.log(metrics, stop)
            progress.show(stop)
            say(
                f"step {stop}/{total}  loss {metrics['sft/loss']:.3f}  "
                f"{metrics['time/train_s']:.0f} s",
                "cold start",
            )
        metrics = stages.run(stages.validate, cluster, models)
        record.log(metrics, total)
        folder = store.checkpoint_folder(record.run_id, total)
        state = {"iteration": total, "run_id": record.run_id, "experiment": experiment.model_dump()}
        state["taught"] = experiment.taught
        stages.run(stages.checkpoint, cluster, models, folder, state)
        record.tracker.log_checkpoint(record.run_id, folder, step=total, metrics=metrics)
        say(_measured(metrics), "cold start")
        say(f"checkpoint {folder}", "cold start")
        if target is None:
            say("no folder was named for the model (--out), so it stays there")
        else:
            export(folder, target)
            say(f"model written to {target}")
        page, _ = log_report(record.tracker, record.run_id, record.folder / "report")
        return RunResult(record.run_id, str(record.folder), str(folder), metrics, report=page)


def _folder_of_policy(experiment: Experiment) -> Path | None:
    """`policy.model` where it names a local folder that is not where the cold start begins."""
    model = experiment.policy.model
    local = model.startswith(("models/", "/", ".", "~"))
    return Path(model).expanduser() if experiment.sft.model and local else None


def _measured(m: dict[str, float]) -> str:
    loss = f"held-out loss {m['sft/held_out_loss']:.3f}"
    if "sft/p_answer_right_memory" not in m:  # no agent that is taught writes a memory
        return loss
    return (
        f"{loss}; P(answer|memory) "
        f"{m['sft/p_answer_right_memory']:.3f} with the right memory, "
        f"{m['sft/p_answer_empty_memory']:.3f} with an empty one; right above empty on "
        f"{m['sft/right_beats_empty_frac']:.0%} of the held-out questions"
    )
