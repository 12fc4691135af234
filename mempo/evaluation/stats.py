"""Means, paired differences and their intervals, from one row per evaluated task.

`evaluations` is everywhere the same table: `method, seed, mode, objectives, question_id, f1, em,
format, p_answer, tt, pt, steps`, `seed` being the training run and `mode` 'greedy' or 'sampled'.
It may also have `metrics.EXTRA_FIELDS`, and `start`, the cold start, where one seed went on from
several: a run is then a (start, seed). Rows of one question of one run are averaged before anything
else, so that several sampled passes of a question are one cluster and not many questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from mempo.draws import Key, generator
from mempo.evaluation.metrics import EXTRA_FIELDS, TASK_FIELDS

KEYS = ("method", "seed", "mode", "objectives", "question_id")
KNOWN_METHODS = ("SFT", "ReAct", "GRPO", "MemPO")

Run = int | tuple[str, int]  # a seed, or a (start, seed)

# Resamples are drawn in blocks of about this many weights, so memory does not grow with the data.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Interval:
    """A mean with a bootstrap interval; `low` and `high` are NaN below two values."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """Mean of `a - b` over pairs, seed by seed and over all; NaN where there is no pair.

    `low` and `high` are of the bootstrap over seeds and questions, `t_low` and `t_high` of
    Student's t over `per_seed` alone.
    """

    per_seed: dict[Run, float]
    mean: float  # mean of `per_seed`: every seed weighs the same
    low: float
    high: float
    pairs: int
    t_low: float = np.nan
    t_high: float = np.nan


def ordered(methods: Iterable[str]) -> list[str]:
    """Distinct method names: the known ones in their fixed order, then the others by name."""
    names = set(methods)
    return [m for m in KNOWN_METHODS if m in names] + sorted(names - set(KNOWN_METHODS))


def require_columns(table: pd.DataFrame, columns: Sequence[str], *, name: str) -> None:
    """Raise ValueError naming what `table` lacks of `columns`."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(f"{name} lacks the columns {missing}; it needs {list(columns)}")


def checked(evaluations: pd.DataFrame) -> pd.DataFrame:
    """`evaluations` with metrics as floats (None becomes NaN); ValueError on missing columns."""
    require_columns(evaluations, (*KEYS, *TASK_FIELDS), name="evaluations")
    return evaluations.astype(dict.fromkeys(fields_of(evaluations), float))


def fields_of(evaluations: pd.DataFrame) -> list[str]:
    """`TASK_FIELDS`, and those of `EXTRA_FIELDS` that the table has."""
    return [*TASK_FIELDS, *(field for field in EXTRA_FIELDS if field in evaluations.columns)]


def run_keys(frame: pd.DataFrame) -> list[str]:
    """The columns that tell the training runs of a method apart."""
    return [*(["start"] if "start" in frame.columns else []), "seed"]


def crossed_interval(
    values_S_Q: ArrayLike, *, level: float = 0.95, resamples: int = 2000, key: tuple[Key, ...]
) -> Interval:
    """Mean over seeds (rows) of means over questions (columns), NaN where a cell is missing.

    Seeds are evaluated on the same questions, so a resample draws seeds and questions
    independently and takes the drawn questions in every drawn seed: noise that a question
    brings to all seeds at once is not averaged away. With one seed this is the ordinary
    percentile bootstrap over questions. The draws depend on `key` alone. Raises ValueError for a
    level outside (0, 1). Sources: Owen, The pigeonhole bootstrap, Annals of Applied Statistics
    1(2), 2007; Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    table = np.asarray(values_S_Q, dtype=float)
    known = np.isfinite(table)
    table, known = table[known.any(axis=1)], known[known.any(axis=1)]
    table, known = table[:, known.any(axis=0)], known[:, known.any(axis=0)]
    n = int(known.sum())
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    filled = np.where(known, table, 0.0)
    mean = float((filled.sum(axis=1) / known.sum(axis=1)).mean())
    if n == 1:
        return Interval(mean, np.nan, np.nan, 1)

    seeds, questions = table.shape
    rng = generator("bootstrap", *key)
    means: list[NDArray[np.float64]] = []
    block = max(1, _BLOCK // questions)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        drawn_seeds = _drawn(rng, count, seeds)
        drawn_questions = _drawn(rng, count, questions)
        answered = drawn_questions @ known.T  # [count, seeds]
        weight = drawn_seeds * (answered > 0)
        seed_means = drawn_questions @ filled.T / np.maximum(answered, 1)
        total = weight.sum(axis=1)
        drawn = total > 0  # empty only where seeds share few questions
        means.append((weight * seed_means).sum(axis=1)[drawn] / total[drawn])
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), n)


def _drawn(rng: np.random.Generator, count: int, n: int) -> NDArray[np.float64]:
    """How often each of `n` items is drawn in `count` draws of `n` with replacement."""
    index = rng.integers(n, size=(count, n)) + n * np.arange(count)[:, None]
    return np.bincount(index.ravel(), minlength=count * n).reshape(count, n).astype(float)


def paired_t_interval(a_R: ArrayLike, b_R: ArrayLike, *, level: float = 0.95) -> Interval:
    """Mean of `a - b` over pairs of runs with Student's t interval: m +- t s / sqrt(n).

    s is the sample standard deviation of the n differences and t the quantile (1 + level) / 2 at
    n - 1 degrees of freedom. Pairs with a number that is not finite are dropped; below two pairs
    there is no interval (NaN). It takes the differences of runs as normal and knows nothing of the
    questions; with few runs it is wider, and more honest, than a bootstrap over them. Raises
    ValueError for a level outside (0, 1) and for sides of unequal length. Source: Student, The
    probable error of a mean, Biometrika 6(1), 1908.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    a, b = np.asarray(a_R, dtype=float), np.asarray(b_R, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"pairs need two sides of one length, got {a.size} and {b.size}")
    differences = (a - b)[np.isfinite(a - b)]
    n = differences.size
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(differences.mean())
    if n == 1:
        return Interval(mean, np.nan, np.nan, 1)
    reach = float(stdtrit(n - 1, (1 + level) / 2) * differences.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - reach, mean + reach, n)


def seed_question_table(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """`metric` as runs x questions, (objectives, question_id) being a question.

    Several rows of a question, as passes have them, are one cell: their mean.
    """
    tasks = frame.groupby([*run_keys(frame), "objectives", "question_id"])[metric].mean()
    return tasks.unstack(["objectives", "question_id"])  # pyright: ignore[reportReturnType]


def mean_interval(
    frame: pd.DataFrame,
    metric: str,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    key: tuple[Key, ...],
) -> Interval:
    """Mean of `metric` over seeds and questions of one method's rows, with its interval."""
    table = seed_question_table(frame, metric).to_numpy(dtype=float)
    return crossed_interval(table, level=level, resamples=resamples, key=key)


def paired_difference(
    a: pd.DataFrame,
    b: pd.DataFrame,
    *,
    metric: str = "f1",
    level: float = 0.95,
    resamples: int = 2000,
    key: tuple[Key, ...] = (),
) -> PairedDifference:
    """Mean of a's minus b's `metric` over tasks both were given, paired by training run.

    `a` and `b` are rows of `evaluations` of one method each; a pair has the same (seed,
    objectives, question_id), and the same start and mode where both tables say it. Rows of the
    same task are averaged first; a task without a finite value on both sides is left out. The
    interval is `crossed_interval` of the differences: seeds are the outer level, with one seed it
    is over questions only. Raises ValueError on missing columns.
    """
    on = ["seed", "objectives", "question_id"]
    if "start" in a.columns and "start" in b.columns:
        on.insert(0, "start")
    for name, frame in (("a", a), ("b", b)):
        require_columns(frame, (*on, metric), name=name)
    if "mode" in a.columns and "mode" in b.columns:
        on.append("mode")
    left, right = (
        frame.astype({metric: float}).groupby(on, as_index=False)[metric].mean() for frame in (a, b)
    )
    pairs = left.merge(right, on=on, suffixes=("_a", "_b"))
    pairs["difference"] = pairs[f"{metric}_a"] - pairs[f"{metric}_b"]
    pairs = pairs[np.isfinite(pairs["difference"])]
    if pairs.empty:
        return PairedDifference({}, np.nan, np.nan, np.nan, 0)
    if "mode" in on and pairs["mode"].nunique() > 1:
        # The same question asked in two modes is two columns of the table.
        pairs["question_id"] = pairs["question_id"].astype(str) + " " + pairs["mode"].astype(str)
    found = mean_interval(
        pairs, "difference", level=level, resamples=resamples, key=("paired", metric, *key)
    )
    runs = pairs.groupby(run_keys(pairs), as_index=False)["difference"].mean()
    starts = runs["start"].astype(str) if "start" in runs else [None] * len(runs)
    per_seed: dict[Run, float] = {
        int(seed) if start is None else (start, int(seed)): float(value)
        for start, seed, value in zip(starts, runs["seed"], runs["difference"], strict=True)
    }
    t = paired_t_interval(list(per_seed.values()), np.zeros(len(per_seed)), level=level)
    return PairedDifference(per_seed, found.mean, found.low, found.high, found.n, t.low, t.high)


def buckets(values: ArrayLike, outcomes: ArrayLike, edges: Sequence[float]) -> pd.DataFrame:
    """How `values` [Q] spread over buckets, and the mean of `outcomes` [Q] in each.

    Bucket i is [edges[i], edges[i+1]), the last one closed on both sides. Rows whose value is
    NaN are dropped; a NaN outcome is left out of the mean only. Returns `low, high, n, share,
    mean`, a row a bucket; shares sum to 1, and an empty bucket's mean is NaN. Raises ValueError
    for edges that do not increase and for values outside of them.
    """
    bounds = np.asarray(edges, dtype=float)
    if bounds.size < 2 or not (np.diff(bounds) > 0).all():
        raise ValueError(f"edges must be at least two increasing numbers, got {list(edges)}")
    numbers = np.asarray(values, dtype=float)
    results = np.asarray(outcomes, dtype=float)
    if numbers.shape != results.shape:
        raise ValueError(f"{numbers.size} values but {results.size} outcomes")
    results, numbers = results[~np.isnan(numbers)], numbers[~np.isnan(numbers)]
    if numbers.size and (numbers.min() < bounds[0] or numbers.max() > bounds[-1]):
        raise ValueError(
            f"values from {numbers.min():g} to {numbers.max():g} lie outside the edges "
            f"{bounds[0]:g} to {bounds[-1]:g}"
        )
    bucket = np.minimum(np.searchsorted(bounds, numbers, side="right") - 1, bounds.size - 2)
    rows: list[dict[str, float]] = []
    for i in range(bounds.size - 1):
        inside = results[bucket == i]
        scored = inside[~np.isnan(inside)]
        rows.append(
            {
                "low": bounds[i],
                "high": bounds[i + 1],
                "n": inside.size,
                "share": inside.size / numbers.size if numbers.size else np.nan,
                "mean": scored.mean() if scored.size else np.nan,
            }
        )
    return pd.DataFrame(rows)


def summary_table(evaluations: pd.DataFrame) -> pd.DataFrame:
    """One row per method, objectives and mode.

    Columns: each of `fields_of` (mean over runs of the mean over questions; NaN where nobody
    measured it) followed by its `_std` (sample standard deviation over runs, NaN with one run),
    then `seeds`, the number of runs, and `n`, that of their questions together. An empty table
    gives an empty table.
    """
    by = ["method", "objectives", "mode"]
    fields = fields_of(evaluations)
    columns = [name for metric in fields for name in (metric, f"{metric}_std")]
    if evaluations.empty:
        return pd.DataFrame(columns=[*by, *columns, "seeds", "n"])
    table = checked(evaluations)
    questions = table.groupby([*by, *run_keys(table), "question_id"])[fields].mean()
    seeds = questions.groupby(level=[*by, *run_keys(table)]).mean().groupby(level=by)
    summary = pd.concat([seeds.mean(), seeds.std(ddof=1).add_suffix("_std")], axis=1)[columns]
    summary["seeds"] = seeds.size()
    summary["n"] = questions.groupby(level=by).size()
    summary = summary.reset_index()
    rank = {method: i for i, method in enumerate(ordered(summary["method"]))}
    return summary.sort_values(
        by, key=lambda c: c.map(rank) if c.name == "method" else c, ignore_index=True
    )
