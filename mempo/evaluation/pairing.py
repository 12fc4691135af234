"""Which runs of a method stand beside which runs of another, where one of them has no seed."""

from __future__ import annotations

import pandas as pd

from mempo.evaluation.stats import run_keys

FRESH = "tiny"  # `policy.model` of a policy that is drawn from the seed


def pair_runs(evaluations: pd.DataFrame, method: str, baseline: str) -> pd.DataFrame:
    """The rows of `method`, as if its runs were those of `baseline` where it has no seeds itself.

    Weights that were evaluated without training are the same whatever the seed: such rows (of one
    start, where there are several) are repeated for every run of the baseline, so that pairs are
    those of the same questions and their spread is that of the baseline's runs. Needs the columns
    `trained` and `policy` (the evaluated weights); rows are returned as they are where the columns
    are missing, where seeds have weights of their own (a run trained them, or they are freshly
    drawn), and where the baseline has no run of that start.
    """
    ours = evaluations[evaluations["method"] == method]
    if not {"trained", "policy"} <= set(evaluations.columns):
        return ours
    own = {FRESH, "", *evaluations.loc[evaluations["trained"].astype(bool), "policy"]}
    keys = run_keys(evaluations)
    runs = evaluations.loc[evaluations["method"] == baseline, keys].drop_duplicates()
    parts: list[pd.DataFrame] = []
    groups = [rows for _, rows in ours.groupby("start")] if "start" in keys else [ours]
    for rows in groups:
        policies = set(rows["policy"])
        beside = runs.merge(rows[keys[:-1]].drop_duplicates()) if keys[:-1] else runs
        if rows["trained"].any() or len(policies) > 1 or policies & own or beside.empty:
            parts.append(rows)
        else:
            without = rows.drop(columns="seed")
            parts.append(
                without.merge(beside, on=keys[:-1]) if keys[:-1] else without.merge(beside, "cross")
            )
    return pd.concat(parts, ignore_index=True) if parts else ours
