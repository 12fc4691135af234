"""Arms that do the same work, timed in turns; their ratio and its spread; how a cost grows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Say = Callable[[str], None]


@dataclass(frozen=True)
class Lap:
    """What one turn of an arm took, in seconds; cpu: of all threads of the process."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Ratio:
    """Median, least and most over rounds."""

    median: float
    least: float
    most: float


@dataclass
class Part:
    """What a part of the bench found."""

    ratios: dict[str, Ratio] = field(default_factory=dict)  # by the key in the JSON file
    cpu: dict[str, Ratio] = field(default_factory=dict)  # those that are of CPU time, too
    laps: dict[str, list[Lap]] = field(default_factory=dict)  # of each arm, a lap a round
    facts: dict[str, float | str] = field(default_factory=dict)  # what else is worth knowing

    def compare(self, key: str, slow: str, fast: str) -> None:
        """Note how many times longer arm `slow` takes than arm `fast`."""
        self.ratios[key] = ratio(self.laps[slow], self.laps[fast])
        self.cpu[key] = ratio(self.laps[slow], self.laps[fast], "cpu")


def timed(work: Callable[[], Any]) -> Lap:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Lap(time.perf_counter() - wall, time.process_time() - cpu)


def race(
    arms: Mapping[str, Callable[[], Any]], *, rounds: int, say: Say, warm_up: bool = True
) -> dict[str, list[Lap]]:
    """Laps of each arm over `rounds` rounds, the arms in turns: A B A B.

    What else the machine does then meets all of them. A turn to warm up is not counted. An arm
    that times itself returns its `Lap`.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in arms}
    for number in range(-1 if warm_up else 0, rounds):
        for name, work in arms.items():
            found: list[Any] = []
            lap = timed(lambda work=work, found=found: found.append(work()))
            lap = found[0] if isinstance(found[0], Lap) else lap
            if number >= 0:
                laps[name].append(lap)
            turn = f"round {number + 1} of {rounds}" if number >= 0 else "warm-up"
            say(f"{name}, {turn}: {lap.wall:.1f} s")
    return laps


def ratio(slow: Sequence[Lap], fast: Sequence[Lap], unit: str = "wall") -> Ratio:
    """How many times longer `slow` took than `fast` in the same round."""
    values = [getattr(a, unit) / getattr(b, unit) for a, b in zip(slow, fast, strict=True)]
    return Ratio(median(values), min(values), max(values))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """k of cost = c size^k, by least squares on the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def growth(sizes: Sequence[float], laps: Sequence[Sequence[Lap]]) -> Ratio:
    """The exponent of the wall time, fitted to each round alone.

    laps: of each size, a lap a round.
    """
    values = [exponent(sizes, [lap.wall for lap in turn]) for turn in zip(*laps, strict=True)]
    return Ratio(median(values), min(values), max(values))


def machine() -> dict[str, float | str]:
    """What a time depends on beside the code, as it is now."""
    import torch
    import transformers

    load = os.getloadavg()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    chips = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": chips[0] if chips else "unknown",
        "cores": cores or 1,
        "threads": torch.get_num_threads(),
        "load_1min": load[0],
        "load_5min": load[1],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


class PeakMemory:
    """The most memory that a block needs above what is there before it, in MiB.

    By the kernel's high-water mark of the process (Linux); elsewhere `mib` stays NaN.
    """

    mib = float("nan")

    def __enter__(self) -> PeakMemory:
        import ctypes
        import gc

        gc.collect()
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the mark falls to what is held now
            self._before = _kib("VmRSS")
        except OSError:
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self.mib = (_kib("VmHWM") - self._before) / 1024


def _kib(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")
