"""From the sampler to the update: really sampled trajectories pass the audit, others do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from mempo.agent.protocol import STOP_STRINGS
from mempo.config import Experiment
from mempo.learners.iteration import AuditError, audit_rollouts, train_on
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.weights import digest
from mempo.samplers.hf import TransformersSampler
from mempo.types import Request, Step, Trajectory

Make = Callable[..., Trajectory]


def experiment(**sections: dict[str, Any]) -> Experiment:
    return Experiment.model_validate({"seed": 5, **sections})


@pytest.fixture
def build(sharp_policy: Any, atlas_codec: Codec) -> Callable[[Experiment], TorchLearner]:
    def make(e: Experiment) -> TorchLearner:
        return TorchLearner(
            deepcopy(sharp_policy), atlas_codec, e.learner, reference=e.loss.needs_reference
        )

    return make


@pytest.fixture
def sampled(
    sharp_policy: Any, atlas_codec: Codec, make_step: Callable[..., Step], make_trajectory: Make
) -> Callable[..., list[Trajectory]]:
    """sampled(sampling, count=4): trajectories of 1, 2, 1, 2, ... really sampled steps."""
    engine = TransformersSampler(
        deepcopy(sharp_policy), atlas_codec, stop=STOP_STRINGS, batch_size=8
    )

    def make(sampling: Sampling | None = None, count: int = 4) -> list[Trajectory]:
        shape = [(n, s) for n in range(count) for s in range(1 + n % 2)]
        requests = [Request([3 + n, 20 + s, 30], 5 + s, ("t", n, s)) for n, s in shape]
        done = engine.generate(requests, sampling or Sampling())
        steps: list[list[Step]] = [[] for _ in range(count)]
        for (n, _), r, c in zip(shape, requests, done, strict=True):
            steps[n].append(
                make_step(c.ids, prompt_ids=r.prompt_ids, logprobs=c.logprobs, mem_spans=[(1, 3)])
            )
        return [make_trajectory(s, rollout=n) for n, s in enumerate(steps)]

    return make


def per_step(trajectories: Sequence[Trajectory], values: Sequence[float]) -> list[float]:
    return [v for t, v in zip(trajectories, values, strict=True) for _ in t.steps]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fault_11_sampler_and_learner_agree(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]],
    temperature: float,
) -> None:  # fmt: skip
    e = experiment(rollout={"temperature": temperature}, learner={"micro_tokens": 20})
    trajectories = sampled(Sampling(temperature))
    learner = build(e)
    adv = per_step(trajectories, [1, -1, 1, -1])
    got = train_on(learner, trajectories, adv, [0.0] * len(adv), e, 0)
    assert 0 < got["audit/logprob_diff_max"] < 1e-4
    assert got["audit/logprob_diff_mean"] <= got["audit/logprob_diff_max"]
    assert got["loss/clip_frac"] == 0
    # ratio 1: the loss is minus the mean of the trajectories' advantages
    assert got["loss/policy"] == pytest.approx(0, abs=1e-5)


def test_fault_11_another_temperature_in_the_learner_fails_the_audit(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(rollout={"temperature": 1.0})
    trajectories = sampled(Sampling(0.7))
    adv = per_step(trajectories, [1, -1, 1, -1])
    with pytest.raises(AuditError, match=r"audit\.max_diff"):
        train_on(build(e), trajectories, adv, adv, e, 0)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (5, 0.8)])
def test_fault_15_truncated_sampling_passes_the_audit_with_ratio_one(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]],
    top_k: int, top_p: float,
) -> None:  # fmt: skip
    e = experiment(rollout={"top_k": top_k, "top_p": top_p}, learner={"micro_tokens": 20})
    trajectories = sampled(Sampling(1.0, top_p, top_k))
    adv = per_step(trajectories, [1, -1, 1, -1])
    got = train_on(build(e), trajectories, adv, adv, e, 0)
    assert got["audit/logprob_diff_max"] < 1e-4
    assert got["loss/clip_frac"] == 0
    with pytest.raises(AuditError):  # the whole vocabulary is not what was sampled from
        train_on(build(experiment()), trajectories, adv, adv, experiment(), 0)


@pytest.mark.parametrize("policy", ["ppo_clip", "gspo", "cispo"])
def test_fault_15_with_the_correction_really_sampled_tokens_weigh_less_than_one(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]], policy: str
) -> None:
    """The whole distribution gives each of the three likeliest tokens less than top-k did."""
    e = experiment(
        rollout={"top_k": 3}, learner={"micro_tokens": 20, "lr": 1e-3},
        loss={"importance": "truncated", "policy": policy, "kl": 0.1, "entropy": 0.01},
    )  # fmt: skip
    trajectories, learner = sampled(Sampling(top_k=3)), build(e)
    adv = per_step(trajectories, [1, -1, 1, -1])
    got = train_on(learner, trajectories, adv, adv, e, 0)
    assert got["audit/logprob_diff_max"] < 1e-4
    assert 0 < got["loss/importance_mean"] < 1 and got["loss/importance_capped_frac"] == 0
    assert got["loss/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert got["loss/clip_frac"] == 0 and abs(got["loss/kl"]) < 1e-9


def test_without_truncation_the_correction_finds_nothing_to_correct(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    """Also at another temperature, which both sides share (FAULTS 11)."""
    norms = []
    for importance in ("none", "truncated"):
        e = experiment(
            rollout={"temperature": 0.7}, loss={"importance": importance}, learner={"lr": 1e-3}
        )
        trajectories, learner = sampled(Sampling(0.7)), build(e)
        adv = per_step(trajectories, [1, -1, 1, -1])
        got = train_on(learner, trajectories, adv, adv, e, 0)
        assert got.get("loss/importance_mean", 1.0) == pytest.approx(1, abs=1e-5)
        norms.append(got["loss/grad_norm"])
    low, high = sorted(norms)
    assert high - low < 1e-5 * high


def test_a_wrong_token_fails_the_audit_and_is_named(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment()
    trajectories = sampled()
    ids = trajectories[3].steps[1].output_ids
    ids[-1] = (ids[-1] + 7) % 70  # the last token: no later log-prob changes
    learner = build(e)
    before = digest(learner.model)
    adv = per_step(trajectories, [1, -1, 1, -1])
    with pytest.raises(AuditError, match=f"q rollout 3 step 1 at output token {len(ids) - 1}"):
        train_on(learner, trajectories, adv, adv, e, 0)
    assert digest(learner.model) == before


def test_a_wrong_log_prob_fails_the_audit_and_is_named(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment()
    trajectories = sampled()
    trajectories[2].steps[0].logprobs[1] += 2e-3
    adv = per_step(trajectories, [1, -1, 1, -1])
    with pytest.raises(AuditError, match="q rollout 2 step 0 at output token 1"):
        train_on(build(e), trajectories, adv, adv, e, 0)


def test_a_wrong_context_fails_the_audit(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment()
    trajectories = sampled()
    trajectories[1].steps[0].prompt_ids = [9, *trajectories[1].steps[0].prompt_ids[1:]]
    adv = per_step(trajectories, [1, -1, 1, -1])
    with pytest.raises(AuditError, match="q rollout 1 step 0"):
        train_on(build(e), trajectories, adv, adv, e, 0)


def test_fault_12_epochs_move_the_ratio_but_the_first_update_does_not(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    sections: dict[str, Any] = {"loss": {"kl": 0.1, "clip": 1e-3}}
    trajectories = sampled()
    adv = per_step(trajectories, [1, -1, 1, -1])
    for epochs, moved in ((1, False), (3, True)):
        e = experiment(**sections, learner={"lr": 1e-2, "epochs": epochs, "micro_tokens": 20})
        got = train_on(build(e), trajectories, adv, adv, e, 0)
        assert (got["loss/clip_frac"] > 0.05) is moved
        assert (got["loss/kl"] > 1e-6) is moved


def test_fault_19_equal_rewards_change_nothing_and_are_counted(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(learner={"minibatches": 2, "lr": 1e-2})
    trajectories, learner = sampled(), build(e)
    before = digest(learner.model)
    zero = per_step(trajectories, [0, 0, 0, 0])
    got = train_on(learner, trajectories, zero, zero, e, 0)
    assert digest(learner.model) == before
    assert got["loss/skipped_updates"] == 2
    assert got["loss/policy"] == got["loss/grad_norm"] == 0


def test_a_skipped_minibatch_does_not_dilute_the_metrics(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(learner={"minibatches": 4})
    trajectories = sampled()
    got = train_on(build(e), trajectories, per_step(trajectories, [0, 1, 0, 0]), [0.0] * 6, e, 0)
    assert got["loss/skipped_updates"] == 3
    assert got["loss/policy"] == pytest.approx(-1, abs=1e-5)


def test_the_same_iteration_twice_gives_the_same_weights(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(learner={"minibatches": 2, "epochs": 2, "lr": 1e-2})
    results = set()
    for _ in range(2):
        learner = build(e)
        trajectories = sampled()
        adv = per_step(trajectories, [1, -1, 0.5, -0.5])
        train_on(learner, trajectories, adv, adv, e, 3)
        results.add(digest(learner.model))
    assert len(results) == 1


def test_fault_27_nothing_to_train_on_is_a_skip(build: Callable[..., TorchLearner]) -> None:
    e = experiment()
    got = train_on(build(e), [], [], [], e, 0)
    assert got["loss/skipped_updates"] == 1 and got["loss/policy"] == 0
    assert got["audit/logprob_diff_max"] == 0


def test_dpo_makes_the_preferred_trajectories_likelier(
    build: Callable[[Experiment], TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(loss={"policy": "dpo"}, learner={"lr": 1e-3, "epochs": 3, "minibatches": 2})
    trajectories = sampled(count=4)
    for t, right in zip(trajectories, (0, 1, 1, 0), strict=True):
        t.reward, t.em, t.format = float(right), float(right), 1.0
    learner = build(e)
    metrics = train_on(learner, trajectories, [], [], e, 0)
    assert (metrics["loss/pairs"], metrics["loss/skipped_updates"]) == (1.0, 0.0)
    rows = [
        sampled_row(s.prompt_ids, s.output_ids, len(s.logprobs))
        for t in trajectories for s in t.steps
    ]  # fmt: skip
    change = [
        float((new - old).sum())
        for new, old in zip(
            learner.logprobs(rows), learner.logprobs(rows, reference=True), strict=True
        )
    ]
    by_trajectory = [change[0], sum(change[1:3]), change[3], sum(change[4:6])]
    assert min(by_trajectory[1:3]) > max(by_trajectory[0], by_trajectory[3])


def test_dpo_without_a_preference_takes_no_step(
    build: Callable[[Experiment], TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    e = experiment(loss={"policy": "dpo"}, learner={"lr": 1e-3})
    trajectories = sampled(count=4)
    for t in trajectories:
        t.reward, t.em = 0.5, 0.0
    learner = build(e)
    before = digest(learner.model)
    metrics = train_on(learner, trajectories, [], [], e, 0)
    assert (metrics["loss/skipped_updates"], metrics["loss/pairs"]) == (1.0, 0.0)
    assert digest(learner.model) == before


def test_rollouts_of_older_weights_are_audited_by_those_and_weighed_for_the_new(
    sharp_policy: Any, atlas_codec: Codec, sampled: Callable[..., list[Trajectory]]
) -> None:
    """The sampler spoke before an update: its log-probs are those of the kept weights."""
    e = experiment(
        learner={"lr": 1e-2, "micro_tokens": 20}, loss={"importance": "truncated"},
    )  # fmt: skip
    learner = TorchLearner(deepcopy(sharp_policy), atlas_codec, e.learner, previous=True)
    trajectories = sampled()
    adv = per_step(trajectories, [1, -1, 1, -1])
    learner.keep()
    before = digest(learner.weights())
    train_on(learner, trajectories, adv, adv, e, 0)  # the update that came in between
    assert digest(learner.weights()) != before
    found = audit_rollouts(learner, trajectories, e)
    assert 0 < found["audit/logprob_diff_max"] < 1e-4
    with pytest.raises(AuditError, match=r"audit\.max_diff"):
        train_on(learner, trajectories, adv, adv, e, 1)
    # min(pi / mu, 2) of every token, from the learner's log-probs now and the sampler's
    steps = [s for t in trajectories for s in t.steps]
    now = learner.logprobs(
        [sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids)) for s in steps]
    )
    gaps = np.concatenate([a - np.array(s.logprobs) for a, s in zip(now, steps, strict=True)])
    got = train_on(learner, trajectories, adv, adv, e, 1, audited=True)
    assert got["loss/importance_mean"] == pytest.approx(
        np.minimum(np.exp(gaps), 2).mean(), abs=1e-5
    )
    assert got["staleness/steps"] == 1 and "audit/logprob_diff_max" not in got
    step = trajectories[2].steps[0]
    step.output_ids[1] = (step.output_ids[1] + 1) % 70
    with pytest.raises(AuditError, match="rollout 2 step 0"):
        audit_rollouts(learner, trajectories, e)


def test_a_sync_learner_keeps_no_older_weights(build: Callable[..., TorchLearner]) -> None:
    learner = build(experiment())
    assert learner.previous is None
    with pytest.raises(ValueError, match="pipeline is sync"):
        learner.logprobs([sampled_row([3], [4], 1)], previous=True)


def test_one_update_on_all_that_was_sampled_takes_one_pass(
    build: Callable[..., TorchLearner], sampled: Callable[..., list[Trajectory]]
) -> None:
    trajectories = sampled()
    e = experiment(learner={"micro_tokens": 10_000})
    one, two = build(e), build(e)
    got = train_on(one, trajectories, [1.0, -1.0, 0.5, -0.5, 1.0, -1.0], [0.0] * 6, e, 0)
    assert 0 <= got["audit/logprob_diff_max"] < 1e-4
    two.logprobs([sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids))
                  for t in trajectories for s in t.steps])  # fmt: skip
    assert one.tokens == two.tokens
    # Without an advantage there is no step and no pass of it, and the audit has one of its own.
    assert train_on(two, trajectories, [0.0] * 6, [0.0] * 6, e, 0).keys() >= {
        "audit/logprob_diff_max"
    }
