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
_TOLD = {"em": "EM", "f1": "F1", "p_answer": "P(answer | memory)", "tt": "Total tokens"}


def difference_lines(evaluations: pd.DataFrame) -> list[str]:
    """What each method gains over GRPO on the same tasks, a line per objectives.

    Sampled evaluations where there are any, else greedy ones; mean over seeds with its 95 %
    bootstrap interval, and every seed's own difference where there are several; from three pairs
    of runs on Student's t interval over them too. Only methods that pair with all of GRPO's
    runs (see `pair_runs`), and not the start itself; empty where GRPO was not evaluated.
    """
    lines: list[str] = []
    if evaluations.empty:
        return lines
    mode = ordered_modes(evaluations["mode"])[-1]
    keys = run_keys(evaluations)
    runs_of = {
        method: set(
            pair_runs(evaluations, method, BASELINE)[keys].itertuples(index=False, name=None)
        )
        for method in ordered(evaluations["method"])
    }
    paired = [m for m in runs_of if runs_of[m] >= runs_of.get(BASELINE, set()) and m != START]
    for method in paired:
        for k in sorted(set(evaluations["objectives"])):
            parts = []
            for metric, name in _TOLD.items():
                form = METRICS[metric][2]
                one = against_baseline(evaluations, method, metric, mode, k)
                if one is not None:
                    t = t_interval(one, form)
                    seeds = " ".join(form.format(v) for _, v in sorted(one.per_seed.items()))
                    more = [f"t {t}"] if t else []
                    more += [f"by seed: {seeds}"] if len(one.per_seed) > 1 else []
                    told = interval(one.mean, one.low, one.high, form)
                    parts.append(f"{name} {told}" + (f" ({'; '.join(more)})" if more else ""))
            if parts:
                lines.append(f"{method} - {BASELINE}, K = {k}, {mode}: {'; '.join(parts)}")
    return lines
