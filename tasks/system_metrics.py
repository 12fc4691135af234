"""The machine's load during a run, under the names that MLflow's page "System metrics" shows.

MLflow's own monitor ends with the first outage and waits for it at the end of the run. This one
leaves out what cannot be sent, and nobody ever waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from mlflow.entities import Metric

from tasks.connection import OUTAGE

if TYPE_CHECKING:
    from tasks.tracking import Tracker

EVERY_S = 15.0

log = logging.getLogger(__name__)
Sample = Callable[[], dict[str, float]]


@contextmanager
def watched(tracker: Tracker, run_id: str, every_s: float = 0.0) -> Iterator[None]:
    """Log system/* of this process's machine while the block runs, a point every `every_s`.

    The step of a point is the number of seconds since the run began, so that a resumed run goes
    on where it was. MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false turns it off, and
    MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL is its default interval in seconds, as for MLflow.
    """
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "").lower() in ("false", "0"):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_watch,
        args=(tracker, run_id, every_s or _default(), over),
        daemon=True,  # it may hang in an outage when the process ends
        name="system metrics",
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(0.2)  # time to end, not to wait for a server


def sampler(home: Path) -> Sample:
    """A function that measures CPU (since its last call), memory, the disk of `home`, and GPUs."""
    gpus = _gpus()
    psutil.cpu_percent()  # it counts from here

    def sample() -> dict[str, float]:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(home))
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            **gpus(),
        }
        return {f"system/{name}": round(value, 1) for name, value in found.items()}

    return sample


def _watch(tracker: Tracker, run_id: str, every_s: float, over: threading.Event) -> None:
    began = 0.0
    try:
        measure = sampler(Path(tracker.home))
        while not over.wait(every_s):
            with suppress(*OUTAGE, ValueError):  # a point less is nothing
                began = began or tracker.run_info(run_id).start
                _send(tracker, run_id, measure(), began)
    except Exception as error:  # the edge: a run is not worth less without these numbers
        log.debug("no system metrics of run %s: %s", run_id, error)


def _send(tracker: Tracker, run_id: str, found: dict[str, float], began: float) -> None:
    # Not through the journal: its lock would make training wait in an outage.
    now = time.time()
    points = [Metric(k, v, int(now * 1000), int(now - began)) for k, v in found.items()]
    tracker.connect()[0].log_batch(run_id, metrics=points, synchronous=True)


def _default() -> float:
    try:
        return float(os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"])
    except (KeyError, ValueError):
        return EVERY_S


def _gpus() -> Sample:
    try:
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        monitor = GPUMonitor()
    except Exception:  # no driver, no package for it, or no GPU
        return dict

    def sample() -> dict[str, float]:
        monitor.clear_metrics()
        monitor.collect_metrics()
        return monitor.aggregate_metrics()

    return sample
