"""What an iteration takes beside its work: Prefect, Ray and MLflow together.

The same iterations run twice: in a real run, and as plain calls of what its actors do, in one
process without Prefect, Ray and MLflow. The difference of the times is the overhead; that both
came to the same numbers shows that they did the same work.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from conf.load import load
from flows.connecting import services
from flows.progress import say
from mempo.config import Experiment

if TYPE_CHECKING:
    from mempo.bench.race import Part

WARM_UP = 2  # iterations; Ray starts workers in the first one
A_ROUND = 4  # iterations
WIKI = Path("models/wiki-sft")


def measure(rounds: int) -> Part:
    """The overhead an iteration of the preset 'test', and its share of one of the preset 'wiki'.

    The latter where its model is there: such an iteration is computed once, in plain calls.
    """
    from mempo.bench.race import Lap, Part, Ratio

    experiment = load("test", overrides=[f"iterations={WARM_UP + A_ROUND * rounds}"])
    with TemporaryDirectory(prefix="mempo-bench-") as folder:
        walls, losses = _real(experiment, Path(folder) / "home")
        times, expected = plain(experiment, Path(folder))
    if losses != expected:
        raise RuntimeError(f"the run and plain calls differ in loss/policy: {losses}, {expected}")
    found = Part()
    found.laps = {
        "overhead, real run": [Lap(wall, float("nan")) for wall in walls[WARM_UP:]],
        "overhead, plain calls": [Lap(wall, float("nan")) for wall in times[WARM_UP:]],
    }
    over = [a - b for a, b in zip(walls[WARM_UP:], times[WARM_UP:], strict=True)]
    found.ratios["overhead_s_per_iteration"] = Ratio(median(over), min(over), max(over))
    say(f"overhead: {median(over):.2f} s an iteration")
    if WIKI.is_dir():
        wiki = load("wiki", overrides=["iterations=1"])
        with TemporaryDirectory(prefix="mempo-bench-") as folder:
            (seconds,), _ = plain(wiki, Path(folder))
        say(f"an iteration of the preset wiki, plain: {seconds:.0f} s")
        found.facts["iteration of the preset wiki, s"] = seconds
        shares = [s / (s + seconds) for s in (median(over), min(over), max(over))]
        found.ratios["overhead_frac_wiki"] = Ratio(*shares)
    return found


def _real(experiment: Experiment, home: Path) -> tuple[list[float], list[float]]:
    """(seconds, loss/policy) of each iteration of a run, from one line in MLflow to the next.

    Of the first iteration the seconds are those of its stages.
    """
    from tasks.tracking import Tracker

    before = os.environ.get("MEMPO_HOME")
    os.environ["MEMPO_HOME"] = str(home)
    try:
        with services([experiment]):
            from flows.train import train

            result = train(experiment)
        tracker = Tracker(experiment.tracking.uri, experiment.tracking.experiment)
        points = tracker.metric_history(result.run_id, "time/iteration_s")
        losses = [p.value for p in tracker.metric_history(result.run_id, "loss/policy")]
    finally:
        if before is None:
            del os.environ["MEMPO_HOME"]
        else:
            os.environ["MEMPO_HOME"] = before
    stamps = [point.timestamp / 1000 for point in points]
    steps = [b - a for a, b in pairwise(stamps)]
    return [points[0].value, *steps], losses


def plain(experiment: Experiment, folder: Path) -> tuple[list[float], list[float]]:
    """(seconds, loss/policy) of each iteration, as plain calls of what the actors do."""
    from tasks.environment import pick_threads
    from tasks.learner_actors import Learner
    from tasks.sampler_actor import Sampler

    threads = pick_threads(experiment.cluster)
    sampler, learner = Sampler(experiment, threads), Learner(experiment, threads)
    weights = folder / "weights.safetensors"
    times, losses = [], []
    for index in range(experiment.iterations):
        begin = time.monotonic()
        path = folder / f"rollouts-{index}.parquet"
        metrics = sampler.rollout(path, index)
        metrics |= learner.score(path, index)
        metrics |= learner.train(path, index)
        sampler.load(weights, index + 1, learner.publish(weights))
        if (index + 1) % experiment.checkpoint.every == 0:
            learner.checkpoint(folder / f"{index:06d}", {"iteration": index + 1})
        times.append(time.monotonic() - begin)
        losses.append(metrics["loss/policy"])
    return times, losses
