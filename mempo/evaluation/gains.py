"""What each method gains over the baseline, in words for a terminal and a README."""

from __future__ import annotations

import pandas as pd

from mempo.evaluation.pairing import pair_runs
from mempo.evaluation.stats import ordered, run_keys
from mempo.evaluation.tables import (
    BASELINE,
    METRICS,
    against_baseline,
    interval,
    ordered_modes,
    t_interval,
)

START = "SFT"
_TOLD = {
    "em": "EM",
    "f1": "F1",
    "p_answer": "P(answer | memory)",
    "tt": "Total tokens",
    "asked_needed": "Asked, needed",
    "asked_needless": "Asked, needless",
}


def difference_lines(evaluations: pd.DataFrame, baseline: str = BASELINE) -> list[str]:
    """What each method gains over the baseline on the same tasks, a line per objectives.

    Sampled evaluations where there are any, else greedy ones; mean over seeds with its 95 %
    bootstrap interval, and every seed's own difference where there are several; from three pairs
    of runs on Student's t interval over them too. Only methods that pair with all runs of the
    baseline (see `pair_runs`), and not the start itself; empty where the baseline was not
    evaluated.
    """
    lines: list[str] = []
    if evaluations.empty:
        return lines
    mode = ordered_modes(evaluations["mode"])[-1]
    shown = {m: name for m, name in _TOLD.items() if m in evaluations}
    keys = run_keys(evaluations)

    def runs_of(method: str, other: str) -> set[tuple]:
        return set(pair_runs(evaluations, method, other)[keys].itertuples(index=False, name=None))

    paired = [
        method
        for method in ordered(evaluations["method"])
        if runs_of(method, baseline) >= runs_of(baseline, method) and method != START
    ]
    for method in paired:
        for k in sorted(set(evaluations["objectives"])):
            parts = []
            for metric, name in shown.items():
                form = METRICS[metric][2]
                one = against_baseline(evaluations, method, metric, mode, k, baseline)
                if one is not None:
                    t = t_interval(one, form)
                    seeds = " ".join(form.format(v) for _, v in sorted(one.per_seed.items()))
                    more = [f"t {t}"] if t else []
                    more += [f"by seed: {seeds}"] if len(one.per_seed) > 1 else []
                    told = interval(one.mean, one.low, one.high, form)
                    parts.append(f"{name} {told}" + (f" ({'; '.join(more)})" if more else ""))
            if parts:
                lines.append(f"{method} - {baseline}, K = {k}, {mode}: {'; '.join(parts)}")
    return lines
