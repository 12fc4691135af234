"""The children of a study: run side by side, in order, gone on with, or taken over as they are."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextvars import copy_context

from conf.study import Child, Study
from flows.plan import child_tags, place, place_of
from flows.progress import Countdown, say
from flows.recording import Record, RunResult
from flows.resuming import last_checkpoint
from flows.train import train
from mempo.config import Experiment
from tasks import placement, store
from tasks.records import RunInfo


def run_children(study: Study, record: Record) -> tuple[dict[str, RunResult], dict[str, str]]:
    """Run, go on with or take over each child; (results, reasons of failures), in study order."""
    runs = record.tracker.find({"mlflow.parentRunId": record.run_id})
    finished = {place_of(run): run for run in runs if run.status == "FINISHED"}
    cut_off = {place_of(run): run for run in runs if run.status in ("FAILED", "KILLED")}
    done: dict[str, RunResult] = {}
    failed: dict[str, str] = {}
    countdown = Countdown({child.name: _work(child.experiment) for child in study.children})
    number = {child.name: i for i, child in enumerate(study.children, start=1)}

    def run(child: Child, experiment: Experiment) -> RunResult:
        say(f"run {number[child.name]} of {len(number)}", child.name)
        begun = cut_off.get(place(child, experiment))
        return train(
            experiment,
            name=child.name,
            parent=record.run_id,
            method=child.method,
            tags=child_tags(child),
            resume=begun.run_id if begun and last_checkpoint(begun.run_id) else "",
        )

    def settle(child: Child, how: str, *, cost_time: bool = True) -> None:
        say(f"{how}; {countdown.settle(child.name, cost_time=cost_time)}", child.name)
        # A sign of life, too: the study's own run logs nothing else before its end.
        over = len(done) + len(failed)
        record.log({"study/runs_over": over}, over)

    waiting = list(study.children)
    running: dict[Future[RunResult], Child] = {}
    parallel = study.children[0].experiment.cluster.parallel
    pool = ThreadPoolExecutor(max_workers=parallel)
    try:
        while waiting or running:
            for child in list(waiting):
                if len(running) == parallel or (child.source and child.source not in done | failed):
                    continue
                waiting.remove(child)
                try:
                    experiment = _begun(child, done, failed)
                except ValueError as error:
                    failed[child.name] = str(error)
                    settle(child, f"failed: {error}", cost_time=False)
                    continue
                if found := finished.get(place(child, experiment)):
                    done[child.name] = _taken_over(found, experiment)
                    settle(child, f"taken over from run {found.run_id}", cost_time=False)
                else:
                    # Each thread gets the flow's context, so that children are sub-flows of it.
                    running[pool.submit(copy_context().run, run, child, experiment)] = child
            for future in wait_for(running, return_when=FIRST_COMPLETED).done if running else ():
                child = running.pop(future)
                try:
                    done[child.name] = future.result()
                except Exception as error:  # the edge: one run's failure must not end the others
                    failed[child.name] = " ".join(f"{type(error).__name__}: {error}".split())
                    settle(child, f"failed: {failed[child.name]}")
                else:
                    settle(child, "done")
    except BaseException:
        with placement.stopped():
            pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()
    return {n: done[n] for n in number if n in done}, {n: failed[n] for n in number if n in failed}


def _begun(child: Child, done: dict[str, RunResult], failed: dict[str, str]) -> Experiment:
    """What a child runs; ValueError where what it starts from is not there."""
    if not child.source:
        return child.experiment
    if child.source in failed:
        raise ValueError(f"it starts from {child.source}, which failed: {failed[child.source]}")
    source = done[child.source]
    if not source.checkpoint:
        raise ValueError(
            f"it starts from {child.source}, whose last checkpoint is not under {source.folder}"
        )
    policy = child.experiment.policy.model_copy(update={"model": source.checkpoint})
    return child.experiment.model_copy(update={"policy": policy})


def _taken_over(run: RunInfo, experiment: Experiment) -> RunResult:
    """A run of earlier as the result that it had."""
    checkpoint = store.checkpoint_folder(run.run_id, experiment.iterations)
    kept = str(checkpoint) if experiment.iterations and checkpoint.is_dir() else ""
    return RunResult(run.run_id, str(store.run_folder(run.run_id)), kept, run.metrics)


def _work(experiment: Experiment) -> float:
    """Trajectories that a run samples; one that is trained on counts three times."""
    e, r = experiment.evaluate, experiment.rollout
    evaluations = 1 + (e.before and experiment.iterations > 0)
    if e.every and experiment.iterations:
        evaluations += (experiment.iterations - 1) // e.every
    measured = evaluations * len(e.objectives) * e.questions * (1 + e.sampled * e.passes)
    return 3 * experiment.iterations * r.questions * r.group_size + measured
