"""The statistics of a race, by hand-computed numbers."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mempo.bench.race import Lap, PeakMemory, Ratio, exponent, growth, machine, race, ratio


def laps(*seconds: float) -> list[Lap]:
    return [Lap(s, 2 * s + 1) for s in seconds]


def test_a_ratio_pairs_the_laps_of_a_round():
    slow, fast = laps(6.0, 9.0, 20.0), laps(2.0, 1.0, 4.0)
    assert ratio(slow, fast) == Ratio(5.0, 3.0, 9.0)  # 3, 9 and 5
    assert ratio(slow, fast, "cpu").least == 13 / 5


def test_laps_without_a_partner_are_refused():
    with pytest.raises(ValueError):
        ratio(laps(1.0, 2.0), laps(1.0))


def test_the_exponent_of_a_power_law_is_its_power():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)
    # log2 of costs 0, 1, 3 at log2 of sizes 0, 1, 2: the least-squares slope is 3 / 2
    assert exponent([1, 2, 4], [1, 2, 8]) == pytest.approx(1.5)


def test_growth_fits_each_round_alone():
    grown = growth([1, 2], [laps(1.0, 1.0, 1.0), laps(2.0, 4.0, 8.0)])
    assert (grown.median, grown.least, grown.most) == pytest.approx((2.0, 1.0, 3.0))


def test_arms_take_turns_and_the_warm_up_is_not_counted():
    said: list[str] = []
    order: list[str] = []
    found = race(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b") or Lap(7.0, 8.0)},
        rounds=2,
        say=said.append,
    )
    assert order == ["a", "b"] * 3
    assert found["b"] == [Lap(7.0, 8.0)] * 2  # as it timed itself
    assert len(found["a"]) == 2 and len(said) == 6
    assert said[1] == "b, warm-up: 7.0 s" and said[-1] == "b, round 2 of 2: 7.0 s"


def test_peak_memory_is_what_was_needed_at_most_at_once():
    if not os.access("/proc/self/clear_refs", os.W_OK):  # the kernel says, not the tested
        pytest.skip("this kernel keeps no high-water mark that can be set back")
    with PeakMemory() as peak:
        for _ in range(3):
            np.ones(32 * 2**20, dtype=np.uint8).sum()
    assert 30 <= peak.mib < 60


def test_the_machine_is_described():
    state = machine()
    assert int(state["cores"]) >= 1 and int(state["threads"]) >= 1
    assert float(state["load_1min"]) >= 0 and state["cpu"]
