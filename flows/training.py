"""The training loop: rollout -> score -> train -> (evaluate) -> (checkpoint) -> log.

With `pipeline: one_step_off` the next rollout runs beside score and train, and the samplers take
the new weights when both are over. So a checkpoint's next rollouts lie in the store already, and a
resume goes on with these very ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

from flows.evaluation import evaluate_policy
from flows.prefect_page import Progress
from flows.progress import say, warn_cut_off
from flows.recording import Record, RunResult
from flows.resuming import Begun
from flows.watching import Watch
from mempo.config import Experiment
from mempo.evaluation.metrics import usd
from mempo.learners.checkpoint import (
    add_metrics,
    best_of,
    complete,
    delete,
    superseded,
    sweep,
)
from tasks import placement, stages, store
from tasks.placement import Models

STAGE_TIMES = tuple(
    f"time/{stage}_s" for stage in ("rollout", "score", "train", "wait", "take_over", "checkpoint")
)
WEIGHTS = "weights.safetensors"  # on their way from the learner to the samplers


@dataclass(frozen=True)
class Training:
    """A run in its models; `threads` are those of each actor, kept in every checkpoint.

    `watch` sees each evaluation during training, after a resume the last one once more, and may
    stop the run there by raising `Pruned`. `ahead`: metrics of the next iteration's rollouts, where
    these are in their file already.
    """

    experiment: Experiment
    record: Record
    models: Models
    label: str
    threads: int
    watch: Watch | None = None
    ahead: dict[str, float] = field(default_factory=dict)

    def run(self, begun: Begun | None) -> RunResult:
        """From the start, or from where it was cut off, to the last evaluation."""
        try:
            return self._run(begun)
        finally:
            (self.record.folder / WEIGHTS).unlink(missing_ok=True)

    def _run(self, begun: Begun | None) -> RunResult:
        e, last = self.experiment, self.experiment.iterations
        first = begun.iteration if begun else 0
        checkpoint = begun.folder if begun else None
        if begun:
            self._go_on(begun)
        elif e.evaluate.before and last > 0:
            self._evaluate(0, f"{self.label}, before")
        progress = Progress(last, "iterations")
        progress.show(first)
        for done in range(first + 1, last + 1):
            metrics = self._iterate(done)
            measured: dict[str, float] = {}
            if e.evaluate.every and done % e.evaluate.every == 0 and done < last:
                measured = self._evaluate(done, self.label)
            if done % e.checkpoint.every == 0 or done == last:
                with _timed(metrics, "checkpoint"):
                    # Its metrics are not logged yet: a kill before they are must not lose them.
                    state = {"threads": self.threads, "metrics": metrics, "measured": measured}
                    state["ahead"] = dict(self.ahead)
                    checkpoint = self._checkpoint(done, state)
            metrics = _with_total_time(metrics)
            self.record.log(metrics, done)
            progress.show(done)
            say(_line(metrics, done, last), self.label)
            self._show(done, measured)
        measured = self._evaluate(last, self.label)
        if checkpoint:
            add_metrics(checkpoint, measured)
            self._tidy()
        if last:
            self._show_last_rollouts()
        folder = str(self.record.folder)
        return RunResult(self.record.run_id, folder, str(checkpoint or ""), measured)

    def _go_on(self, begun: Begun) -> None:
        """Bring the models, and what is logged, to where the run was cut off."""
        done = begun.iteration
        sweep(begun.folder.parent)
        say(f"going on after iteration {done} of {self.experiment.iterations}", self.label)
        where = (begun.folder, self.record.folder / WEIGHTS)
        stages.run(stages.restore, self.experiment.cluster, self.models, *where, done)
        ahead = begun.state.get("ahead", {})
        if self._rollouts(done + 1).is_file():  # sampled by the weights before: as they were
            self.ahead.update(ahead)
        elif ahead:
            say(f"warning: the rollouts of iteration {done + 1} are gone; they are sampled anew")
        self.record.log(_with_total_time(begun.state["metrics"]), done)
        self._note(begun.folder, done, begun.state)
        self._show(done, begun.state["measured"])  # it may have been cut off before

    def _show(self, done: int, measured: dict[str, float]) -> None:
        """Let the watch see an evaluation during training; it may raise `Pruned`."""
        if self.watch and measured and done < self.experiment.iterations:
            self.watch(done, measured)

    def _iterate(self, number: int) -> dict[str, float]:
        """Iteration `number`, from 1: its files and metrics carry it; draws count from 0."""
        given, index = (self.experiment.cluster, self.models), number - 1
        path, weights = self._rollouts(number), self.record.folder / WEIGHTS
        overlap = self.experiment.pipeline == "one_step_off" and number < self.experiment.iterations
        metrics, audited = dict(self.ahead), bool(self.ahead)
        self.ahead.clear()
        if not audited:
            with _timed(metrics, "rollout"):
                metrics |= stages.run(stages.rollout, *given, path, index)
        ahead = self._rollouts(number + 1)
        sampled = stages.start(stages.rollout, *given, ahead, number) if overlap else None
        with _timed(metrics, "score"):
            metrics |= stages.run(stages.score, *given, path, index)
        with _timed(metrics, "train"):
            of_audit = metrics.get("cost/trained_tokens", 0.0)
            arguments = (path, None if overlap else weights, index, audited)
            metrics |= stages.run(stages.train, *given, *arguments)
            metrics["cost/trained_tokens"] += of_audit
        if sampled:  # samplers change weights between generations, never in one
            with _timed(metrics, "wait"):
                self.ahead.update(sampled())
            with _timed(metrics, "take_over"):
                found = stages.run(stages.take_over, *given, ahead, weights, number)
                self.ahead.update(found)
        metrics["cost/usd"] = usd(metrics, self.experiment.price)
        warn_cut_off(metrics["rollout/truncated_frac"], "rollouts")
        if metrics.get("loss/pairs") == 0:
            say(
                "warning: nothing was trained, for DPO found no pair: the better one has to get "
                "every objective exactly right in good form, whatever the reward is; ask fewer "
                "objectives (environment.objectives), raise rollout.group_size or set "
                "rollout.resample"
            )
        return metrics

    def _rollouts(self, number: int) -> Path:
        return store.iteration_folder(self.record.run_id, number) / "rollouts.parquet"

    def _evaluate(self, step: int, label: str) -> dict[str, float]:
        return evaluate_policy(self.experiment, self.record, self.models, step, label)

    def _checkpoint(self, done: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint, and delete those that it supersedes."""
        run_id = self.record.run_id
        folder = store.checkpoint_folder(run_id, done)
        state |= {"iteration": done, "run_id": run_id, "experiment": self.experiment.model_dump()}
        stages.run(stages.checkpoint, self.experiment.cluster, self.models, folder, state)
        self._note(folder, done, state)
        self._tidy()
        return folder

    def _note(self, folder: Path, done: int, state: dict[str, Any]) -> None:
        """Record a checkpoint in MLflow, and its evaluation beside it."""
        add_metrics(folder, state["measured"])
        metrics = {"reward/mean": state["metrics"]["reward/mean"]}
        self.record.tracker.log_checkpoint(self.record.run_id, folder, step=done, metrics=metrics)

    def _tidy(self) -> None:
        """Delete the checkpoints that `checkpoint.keep` and `best` do not keep."""
        settings = self.experiment.checkpoint
        parent = store.checkpoint_folder(self.record.run_id, 0).parent
        for old in superseded(parent, settings.keep, settings.best):
            self.record.tracker.drop_checkpoint(self.record.run_id, int(old.name))
            delete(old)
        if best := best_of(complete(parent), settings.best):
            self.record.tracker.mark_best(self.record.run_id, int(best.name))

    def _show_last_rollouts(self) -> None:
        """One group of the last iteration, with its advantages, for the trajectory page."""
        e = self.experiment
        call = self.models.samplers[0].describe.remote(
            self._rollouts(e.iterations), e.rollout.group_size
        )
        shown = placement.wait(call, e.cluster, "describe")
        self.record.tracker.log_text(
            self.record.run_id, json.dumps(shown), "training/trajectories.json"
        )


@contextmanager
def _timed(metrics: dict[str, float], stage: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    metrics[f"time/{stage}_s"] = time.monotonic() - start


def _with_total_time(metrics: dict[str, float]) -> dict[str, float]:
    """The stages' times added up; rollouts that were sampled ahead took theirs beside others."""
    beside = metrics.get("staleness/steps", 0.0) > 0
    counted = set(STAGE_TIMES) - ({"time/rollout_s"} if beside else set())
    total = sum(v for k, v in metrics.items() if k in counted)
    return {**metrics, "time/iteration_s": total}


def _line(m: dict[str, float], done: int, last: int) -> str:
    p = m["memory/p_answer"]  # NaN: no memory, or not scored in this iteration
    memory = "" if isnan(p) else f"P(answer|memory) {p:.3f}  "
    return (
        f"iteration {done}/{last}  reward {m['reward/mean']:.3f}  EM {m['reward/em']:.3f}  "
        f"format {m['reward/format']:.2f}  {memory}{m['time/iteration_s']:.1f} s"
    )
