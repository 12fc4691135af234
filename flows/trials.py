"""The trials of a sweep: asked for, run side by side, gone on with, and told how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextvars import copy_context
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

from conf.sweep import Sweep
from flows.progress import Countdown, say
from flows.recording import Record
from flows.sweep_plan import Outcome, Trial, ranked, trial_name, trials_of
from flows.trial import trial
from flows.watching import Pruned, watched
from mempo.config.space import shown_point
from tasks import placement

if TYPE_CHECKING:
    from tasks.search import Asked, Search


def run_trials(sweep: Sweep, record: Record, search: Search) -> None:
    """Run what is left of a sweep's trials; how each ended stands in its MLflow run.

    A trial's run is closed before the search is told: where a kill comes between, the trial goes
    on, finds its outcome in its run and only tells it.

    Raises:
        ValueError: the database has lost trials that MLflow knows.
    """
    begun = {t.number: t for t in _flushed(record)}
    if len(search) < len(begun):
        raise ValueError(
            f"MLflow knows {len(begun)} trials of this sweep, but its database only "
            f"{len(search)}; set MEMPO_HOME or MEMPO_DATABASE_URL to where it was started, or "
            "start anew without --resume"
        )
    countdown = Countdown({trial_name(n): 1.0 for n in range(sweep.trials)}, "trials")
    over = search.over()
    for number in sorted(over):
        countdown.settle(trial_name(number), cost_time=False)
    if over:
        say(f"{len(over)} of {sweep.trials} trials were over before")
    first = ranked(list(begun.values()))
    best = first[0].outcome.value if first else -inf
    waiting = search.unfinished()
    running: dict[Future[Outcome], Asked] = {}
    pool = ThreadPoolExecutor(max_workers=sweep.parallel)
    try:
        while True:
            while len(running) < sweep.parallel:
                asked = waiting.pop(0) if waiting else search.ask()
                if asked is None:
                    break
                # Each thread gets the flow's context, so that trials are sub-flows of it.
                run = copy_context().run
                future = pool.submit(run, _run, sweep, record, search, asked, begun)
                running[future] = asked
            if not running:
                break
            for future in wait_for(running, return_when=FIRST_COMPLETED).done:
                asked = running.pop(future)
                outcome = _outcome(future)
                search.tell(asked.number, outcome.state, outcome.value, outcome.reason)  # pyright: ignore[reportArgumentType]
                best = max(best, outcome.value if outcome.state == "complete" else -inf)
                told = _line(sweep, outcome, best)
                name = trial_name(asked.number)
                say(f"{told}; {countdown.settle(name)}", name)
                done = len(search.over())
                # A sign of life, too: the sweep's own run logs nothing else before its end.
                shown = {"sweep/best": best if isfinite(best) else nan}
                record.log({"sweep/trials_over": done, **shown}, done)
    except BaseException:
        with placement.stopped():
            pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _run(
    sweep: Sweep, record: Record, search: Search, asked: Asked, begun: Mapping[int, Trial]
) -> Outcome:
    name = trial_name(asked.number)
    say(f"{asked.number + 1} of {sweep.trials}: {shown_point(asked.point)}", name)

    def watch(iteration: int, measured: Mapping[str, float]) -> None:
        value = measured.get(sweep.metric, nan)
        if isfinite(value) and search.should_stop(asked.number, iteration, value):
            raise Pruned(iteration)

    with watched(watch if sweep.prune else None):
        earlier = begun.get(asked.number)
        return trial(sweep, asked.number, asked.point, record.run_id, earlier)


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except Exception as error:  # the edge: one trial's failure must not end the others
        return Outcome("failed", reason=" ".join(str(error).split()) or type(error).__name__)


def _flushed(record: Record) -> list[Trial]:
    """The trials that MLflow knows, with what an outage or a kill left unsent."""
    tracker = record.tracker
    for found in trials_of(tracker, record.run_id):
        tracker.flush(found.run.run_id)
    return trials_of(tracker, record.run_id)


def _line(sweep: Sweep, outcome: Outcome, best: float) -> str:
    if outcome.state == "complete":
        return f"{sweep.metric} {outcome.value:.3f} (best {best:.3f})"
    return f"{outcome.state}: {outcome.reason}"
