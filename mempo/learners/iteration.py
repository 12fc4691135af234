"""One iteration of the learner: what the trajectories are worth becomes an update."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from mempo.config import Audit, Experiment
from mempo.credit.advantage import token_advantages
from mempo.credit.schedule import memory_weight
from mempo.draws import generator
from mempo.learners.loss import token_weights
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.policies.distribution import Sampling
from mempo.types import Trajectory


class AuditError(RuntimeError):
    """The learner's log-probs of the sampled tokens are not those of the sampler."""


def train_on(
    learner: TorchLearner,
    trajectories: Sequence[Trajectory],
    adv_traj: Sequence[float],
    adv_mem: Sequence[float] | Sequence[Sequence[float]],
    experiment: Experiment,
    iteration: int,
) -> dict[str, float]:
    """Audit, then `epochs` x `minibatches` optimiser steps.

    adv_*: a value a step, in order; of a memory of two grains one a grain.

    Returns the iteration's metrics. Minibatches are split by trajectory, in an order drawn from
    (seed, iteration, epoch). A trajectory without a finite reward is audited, but neither trained
    nor counted in the loss's N (`rollout/missing_reward` counts it). AuditError where a step comes
    without log-probs; a step without a trained token is counted (`loss/empty_steps`) and named in
    a warning.
    """
    sampling = Sampling(
        experiment.rollout.temperature, experiment.rollout.top_p, experiment.rollout.top_k
    )
    steps = [(n, s) for n, t in enumerate(trajectories) for s in t.steps]
    names = [
        f"{t.question.id} rollout {t.rollout} step {at}"
        for t in trajectories
        for at in range(len(t.steps))
    ]
    for name, (_, s) in zip(names, steps, strict=True):
        if s.output_ids and not s.logprobs:
            raise AuditError(f"{name}: the sampler's log-probs are missing; the audit needs them")
    rows = [sampled_row(s.prompt_ids, s.output_ids, len(s.logprobs)) for _, s in steps]
    empty = [name for name, row in zip(names, rows, strict=True) if not row.targets]
    if empty:
        warnings.warn(
            f"{len(empty)} steps have no trained token; the first: {empty[0]}", stacklevel=2
        )
    old = learner.logprobs(rows, sampling)
    audited = audit(
        old,
        [s.logprobs for _, s in steps],
        names,
        experiment.audit,
        exact=experiment.policy.dtype == "float32",
    )
    reference = learner.logprobs(rows, sampling, reference=True) if experiment.loss.kl > 0 else None
    weight = memory_weight(experiment.memory, iteration, experiment.iterations)
    advantages = [
        token_advantages(row.targets, s.mem_spans, at, am, weight)
        for row, (_, s), at, am in zip(rows, steps, adv_traj, adv_mem, strict=True)
    ]
    rewarded = np.isfinite([t.reward for t in trajectories])
    results = []
    for epoch in range(experiment.learner.epochs):
        order = generator(experiment.seed, "minibatch", iteration, epoch).permutation(
            len(trajectories)
        )
        trained = [n for n in order.tolist() if rewarded[n]]
        for part in np.array_split(trained, experiment.learner.minibatches):
            members = set(part.tolist())
            chosen = [i for i, (n, _) in enumerate(steps) if n in members]
            weights = token_weights(
                [rows[i].targets for i in chosen],
                [steps[i][0] for i in chosen],
                aggregation=experiment.loss.aggregation,
                constant=experiment.loss.constant,
            )
            batch = [
                TrainRow(
                    rows[i], advantages[i], old[i], float(w), reference[i] if reference else None
                )
                for i, w in zip(chosen, weights, strict=True)
            ]
            results.append(learner.update(batch, experiment.loss, sampling))
    return {**audited, **_summary(results), "loss/empty_steps": float(len(empty))}


def audit(
    learner_S: Sequence[np.ndarray],
    sampler_S: Sequence[Sequence[float]],
    names_S: Sequence[str],
    settings: Audit,
    *,
    exact: bool,
) -> dict[str, float]:
    """Compare log-probs of sampler and learner, step by step; AuditError beyond the bound.

    exact (float32): the bound is on the largest difference; else (bfloat16) on the mean.
    """
    differences = [
        np.abs(a - np.asarray(b, dtype=np.float64))
        for a, b in zip(learner_S, sampler_S, strict=True)
    ]
    size = [np.nan_to_num(d, nan=np.inf).max(initial=0.0) for d in differences]
    worst = max(range(len(differences)), key=size.__getitem__, default=0)
    together = np.concatenate(differences) if differences else np.zeros(0)
    mean = float(together.mean()) if together.size else 0.0
    largest = float(together.max(initial=0.0))
    value, bound = (largest, settings.max_diff) if exact else (mean, settings.mean_diff)
    if not value <= bound:
        name = "audit.max_diff" if exact else "audit.mean_diff"
        raise AuditError(
            f"the learner's log-probs differ from the sampler's by {value:.2e} (bound {name} = "
            f"{bound:g}); worst in {names_S[worst]} at output token "
            f"{int(differences[worst].argmax())}"
        )
    return {"audit/logprob_diff_mean": mean, "audit/logprob_diff_max": largest}


def _summary(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over the optimiser steps that were taken (zeros where none was); the number skipped."""
    taken = [r for r in results if not r["skipped"]]
    shown = taken or results[:1]
    metrics = {
        f"loss/{n}": float(np.mean([r[n] for r in shown]))
        for n in ("policy", "kl", "clip_frac", "entropy", "grad_norm")
        if shown and n in shown[0]
    }
    metrics["loss/skipped_updates"] = float(len(results) - len(taken))
    return metrics
