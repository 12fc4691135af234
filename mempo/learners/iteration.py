"""One iteration of the learner: what the trajectories are worth becomes an update."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from mempo.config import Audit, Experiment
from mempo.credit.advantage import token_advantages
from mempo.credit.preferences import preference_pairs
from mempo.credit.schedule import memory_weight
from mempo.draws import generator
from mempo.learners.dpo import Lived, dpo_update
from mempo.learners.loss import token_weights, truncated_importance
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.policies.distribution import Sampling
from mempo.types import Row, Trajectory

SHOWN = (  # of an optimiser step's results, as metrics loss/...
    *("policy", "kl", "clip_frac", "ratio_mean", "entropy", "grad_norm"),
    *("margin", "preferred_frac", "pairs"),
)


class AuditError(RuntimeError):
    """The learner's log-probs of the sampled tokens are not those of the sampler."""


def train_on(
    learner: TorchLearner,
    trajectories: Sequence[Trajectory],
    adv_traj: Sequence[float],
    adv_mem: Sequence[float] | Sequence[Sequence[float]],
    experiment: Experiment,
    iteration: int,
    *,
    audited: bool = False,
) -> dict[str, float]:
    """Audit, then `epochs` x `minibatches` optimiser steps.

    adv_*: a value a step, in order; of a memory of two grains one a grain.
    audited: older weights sampled the trajectories, and `audit_rollouts` has audited them by those.

    Returns the iteration's metrics; `staleness/steps` is the mean number of updates between the
    weights that sampled a step and those that train on it (version `iteration`). Minibatches are
    split by trajectory, in an order drawn from (seed, iteration, epoch). A trajectory without a
    finite reward is audited, but neither trained nor counted in the loss's N
    (`rollout/missing_reward` counts it). A step without a trained token is counted
    (`loss/empty_steps`) and named in a warning; so is one without the sampler's log-probs
    (`audit/missing_steps`), which is trained unaudited. With loss.importance 'truncated' such a
    step is a ValueError, and what is trained is the whole distribution at the sampling temperature;
    the audit stays with the one sampled from.
    """
    settings = experiment.loss
    sampled_from = _sampled_from(experiment)
    corrected = settings.corrected
    sampling = Sampling(experiment.rollout.temperature) if corrected else sampled_from
    steps = [(n, s) for n, t in enumerate(trajectories) for s in t.steps]
    names = _names(trajectories)
    silent = [i for i, (_, s) in enumerate(steps) if s.output_ids and not s.logprobs]
    if silent and corrected:
        raise ValueError(
            f"{names[silent[0]]}: the sampler's log-probs are missing, and loss.importance "
            "'truncated' needs them; set it to 'none', or use an engine that returns them"
        )
    rows = _rows(trajectories)
    empty = [i for i, row in enumerate(rows) if not row.targets]
    _warn("have no trained token", [names[i] for i in empty])
    _warn("come without the sampler's log-probs, unaudited", [names[i] for i in silent])
    metrics = {"audit/missing_steps": float(len(silent)), "loss/empty_steps": float(len(empty))}
    ages = [iteration - s.policy_version for _, s in steps]
    metrics["staleness/steps"] = float(np.mean(ages)) if ages else 0.0

    def check(seen_S: Sequence[np.ndarray]) -> None:
        metrics.update(_audit_steps(seen_S, trajectories, experiment))

    rewarded = [isfinite(t.reward) for t in trajectories]
    # One update on all that was sampled: its own pass has the log-probs before it.
    on_policy = (
        experiment.learner.epochs == experiment.learner.minibatches == 1
        and settings.policy != "dpo"
        and not corrected
        and not audited
        and all(rewarded)
    )
    old: list[np.ndarray] = []
    if not on_policy:
        old = learner.logprobs(rows, sampling)
        if not audited:
            check(old if sampling == sampled_from else learner.logprobs(rows, sampled_from))
    reference = None
    if settings.needs_reference:
        reference = learner.logprobs(rows, sampling, reference=True)
    importance = None
    if corrected:
        cap = settings.importance_cap
        importance = [
            truncated_importance(o, s.logprobs, cap=cap)
            for o, (_, s) in zip(old, steps, strict=True)
        ]
        metrics |= _importance_metrics(importance, cap)
    if reference is not None and settings.policy == "dpo":
        lived = {n: Lived([], 0.0) for n in range(len(trajectories))}
        for row, ref, (n, _) in zip(rows, reference, steps, strict=True):
            lived[n].rows.append(row)
            lived[n].ref_logprob += float(ref.sum())
        results = _prefer(learner, trajectories, lived, experiment, iteration, sampling)
        return {**metrics, **_summary(results)}
    weight = memory_weight(experiment.memory, iteration, experiment.iterations)
    advantages = [
        token_advantages(row.targets, s.mem_spans, at, am, weight)
        for row, (_, s), at, am in zip(rows, steps, adv_traj, adv_mem, strict=True)
    ]
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
                aggregation=settings.aggregation,
                constant=settings.constant,
            )
            batch = [
                TrainRow(
                    rows[i],
                    advantages[i],
                    None if on_policy else old[i],
                    float(w),
                    reference[i] if reference else None,
                    importance[i] if importance else None,
                )
                for i, w in zip(chosen, weights, strict=True)
            ]
            results.append(learner.update(batch, settings, sampling, check if on_policy else None))
    if on_policy and results[0]["skipped"]:
        check(learner.logprobs(rows, sampling))
    return {**metrics, **_summary(results)}


def _prefer(
    learner: TorchLearner,
    trajectories: Sequence[Trajectory],
    lived: Mapping[int, Lived],
    experiment: Experiment,
    iteration: int,
    sampling: Sampling,
) -> list[dict[str, float]]:
    """The optimiser steps of DPO; minibatches are split by pair."""
    pairs = preference_pairs(trajectories)
    results = []
    for epoch in range(experiment.learner.epochs):
        rng = generator(experiment.seed, "minibatch", iteration, epoch)
        order = rng.permutation(len(pairs))
        for part in np.array_split(order, experiment.learner.minibatches):
            chosen = [pairs[i] for i in part]
            beta = experiment.loss.beta
            results.append(dpo_update(learner, lived, chosen, beta=beta, sampling=sampling))
            results[-1]["pairs"] = float(len(chosen))
    return results


def audit_rollouts(
    learner: TorchLearner, trajectories: Sequence[Trajectory], experiment: Experiment
) -> dict[str, float]:
    """The audit of rollouts that were sampled while the learner trained: by its weights before."""
    seen = learner.logprobs(_rows(trajectories), _sampled_from(experiment), previous=True)
    return _audit_steps(seen, trajectories, experiment)


def _audit_steps(
    seen_S: Sequence[np.ndarray], trajectories: Sequence[Trajectory], experiment: Experiment
) -> dict[str, float]:
    """Audit the steps that have log-probs of the sampler."""
    steps, names = [s for t in trajectories for s in t.steps], _names(trajectories)
    spoken = [i for i, s in enumerate(steps) if s.logprobs or not s.output_ids]
    if steps and not spoken:  # a difference of 0 would be a proof that nobody gave
        return {}
    return audit(
        [seen_S[i] for i in spoken],
        [steps[i].logprobs for i in spoken],
        [names[i] for i in spoken],
        experiment.audit,
        exact=experiment.policy.dtype == "float32",
    )


def _rows(trajectories: Sequence[Trajectory]) -> list[Row]:
    """A row a step, in order."""
    return [
        sampled_row(s.prompt_ids, s.output_ids, len(s.logprobs or s.output_ids))
        for t in trajectories
        for s in t.steps
    ]


def _names(trajectories: Sequence[Trajectory]) -> list[str]:
    """What a step is called, in order."""
    return [
        f"{t.question.id} rollout {t.rollout} step {at}"
        for t in trajectories
        for at in range(len(t.steps))
    ]


def _sampled_from(experiment: Experiment) -> Sampling:
    rollout = experiment.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k)


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


def _warn(what: str, names: Sequence[str]) -> None:
    if names:
        warnings.warn(f"{len(names)} steps {what}; the first: {names[0]}", stacklevel=3)


def _importance_metrics(importance_S: Sequence[np.ndarray], cap: float) -> dict[str, float]:
    """Plain mean over all tokens, and the share of them whose weight is the cap."""
    together = np.concatenate([*importance_S, np.zeros(0)])
    if not together.size:
        return {}
    return {
        "loss/importance_mean": float(together.mean()),
        "loss/importance_capped_frac": float(np.isclose(together, cap, rtol=1e-9).mean()),
    }


def _summary(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over the optimiser steps that were taken (zeros where none was); the number skipped."""
    taken = [r for r in results if not r["skipped"]]
    shown = taken or results[:1]
    metrics = {
        f"loss/{n}": float(np.mean([r[n] for r in shown])) for n in SHOWN if shown and n in shown[0]
    }
    metrics["loss/skipped_updates"] = float(len(results) - len(taken))
    return metrics
