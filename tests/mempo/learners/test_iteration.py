"""What each token is worth, minibatches, and the audit by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Audit, Experiment
from mempo.learners.iteration import AuditError, audit, train_on
from mempo.learners.torch_learner import TrainRow
from mempo.policies.distribution import logprobs_of
from mempo.types import Step, Trajectory

Make = Callable[..., Trajectory]


def experiment(**sections: dict[str, Any]) -> Experiment:
    return Experiment.model_validate({"seed": 5, **sections})


class Recorder:
    """A learner that notes the minibatches it gets."""

    def __init__(self) -> None:
        self.batches: list[list[TrainRow]] = []

    def logprobs(self, rows: Sequence[Any], *_: Any, **__: Any) -> list[np.ndarray]:
        return [np.full(r.targets, -1.0) for r in rows]

    def update(self, rows: Sequence[TrainRow], *_: Any) -> dict[str, float]:
        self.batches.append(list(rows))
        return {"policy": 0.5, "kl": 0, "clip_frac": 0, "entropy": 1, "grad_norm": 2, "skipped": 0}


# --- what each token is worth


def test_a_k_of_every_token_by_hand(make_step: Callable[..., Step], make_trajectory: Make) -> None:
    """Steps of 3 and 2 tokens; memory weight 0.5; weights 1/(2 * 5) and 1/(2 * 4)."""
    e = experiment(memory={"weight": 0.5})
    trajectories = [
        make_trajectory(
            [make_step([7, 8, 9], mem_spans=[(1, 2)]), make_step([7, 8], mem_spans=[(0, 2)])]
        ),
        make_trajectory([make_step([7, 8, 9, 10])], rollout=1),
    ]
    learner = Recorder()
    train_on(learner, trajectories, [1, 1, -1], [2, -3, 4], e, 0)  # type: ignore[arg-type]
    (batch,) = learner.batches
    assert [r.advantages.tolist() for r in batch] == [[1, 2, 1], [-0.5, -0.5], [-1, -1, -1, -1]]
    assert [r.weight for r in batch] == pytest.approx([0.1, 0.1, 0.125])
    assert batch[0].row.ids == [1, 2, 3, 7, 8, 9]
    assert all(r.ref_logprobs is None for r in batch)


def test_fault_25_every_step_is_trained_with_its_trajectorys_advantage(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    e = experiment(memory={"weight": 0})
    steps = [make_step(list(range(7, 7 + n)), mem_spans=[(0, 1)]) for n in (5, 2, 9)]
    trajectories = [make_trajectory(steps), make_trajectory([make_step()], rollout=1)]
    learner = Recorder()
    train_on(learner, trajectories, [1, 1, 1, -1], [0.0] * 4, e, 0)  # type: ignore[arg-type]
    (batch,) = learner.batches
    assert [r.row.targets for r in batch] == [5, 2, 9, 3]
    assert [r.advantages.tolist() for r in batch] == [[1] * 5, [1] * 2, [1] * 9, [-1] * 3]
    assert all(r.weight > 0 for r in batch)


def test_minibatches_split_by_trajectory_once_an_epoch(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    e = experiment(learner={"minibatches": 3, "epochs": 2})
    trajectories = [
        make_trajectory([make_step([40 + n] * 3)] * (1 + n % 3), rollout=n) for n in range(7)
    ]
    count = sum(len(t.steps) for t in trajectories)

    def batches(iteration: int) -> list[list[int]]:
        learner = Recorder()
        train_on(learner, trajectories, [1.0] * count, [0.0] * count, e, iteration)  # type: ignore[arg-type]
        for batch in learner.batches:  # weights are those of the minibatch alone
            assert sum(r.weight * r.row.targets for r in batch) == pytest.approx(1)
        return [[r.row.ids[-1] - 40 for r in batch] for batch in learner.batches]

    first = batches(0)
    assert len(first) == 6
    for epoch in (first[:3], first[3:]):
        assert [len(set(b)) for b in epoch] == [3, 2, 2]
        seen = sorted(n for b in epoch for n in b)
        assert seen == sorted(n for n in range(7) for _ in range(1 + n % 3))
    assert first[:3] != first[3:] and first != batches(1) and first == batches(0)


def test_fault_05_a_step_without_trained_tokens_is_counted_and_named(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    trajectories = [make_trajectory([make_step(), make_step([])]), make_trajectory([make_step()])]
    learner = Recorder()
    with pytest.warns(UserWarning, match="1 steps have no trained token.*q rollout 0 step 1"):
        got = train_on(learner, trajectories, [1, 1, 1], [0, 0, 0], experiment(), 0)  # type: ignore[arg-type]
    assert got["loss/empty_steps"] == 1
    # N = 2 trajectories with 3 trained tokens each
    assert [r.weight for r in learner.batches[0]] == pytest.approx([1 / 6, 0, 1 / 6])


def test_fault_08_a_token_without_log_prob_is_not_trained(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    step = make_step([7, 8, 9], logprobs=[-1.0, -1.0])
    learner = Recorder()
    train_on(learner, [make_trajectory([step])], [1], [0], experiment(), 0)  # type: ignore[arg-type]
    ((row,),) = learner.batches
    assert row.row.mask == [False, False, False, True, True, False]
    assert len(row.advantages) == row.row.targets == 2


def with_a_silent_step(make_step: Callable[..., Step], make: Make) -> list[Trajectory]:
    """The second rollout's second step came without log-probs."""
    return [make([make_step()]), make([make_step(), make_step(logprobs=[])], rollout=1)]


def test_fault_16_a_correction_without_log_probs_is_an_error_that_names_the_rollout(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    trajectories, learner = with_a_silent_step(make_step, make_trajectory), Recorder()
    e = experiment(loss={"importance": "truncated"})
    with pytest.raises(
        ValueError, match=r"q rollout 1 step 1: .*missing.*loss\.importance"
    ) as error:
        train_on(learner, trajectories, [1] * 3, [0] * 3, e, 0)  # type: ignore[arg-type]
    assert "\n" not in str(error.value) and not learner.batches


def test_fault_16_without_a_correction_it_trains_unaudited_and_counted(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    trajectories, learner = with_a_silent_step(make_step, make_trajectory), Recorder()
    with pytest.warns(UserWarning, match="1 steps come without .* unaudited.*q rollout 1 step 1"):
        got = train_on(learner, trajectories, [1] * 3, [0] * 3, experiment(), 0)  # type: ignore[arg-type]
    assert got["audit/missing_steps"] == 1 and got["loss/empty_steps"] == 0
    ((_, _, silent),) = learner.batches
    assert silent.row.mask == [False] * 3 + [True] * 3
    assert len(silent.advantages) == silent.row.targets == 3 and silent.weight > 0


def test_fault_16_where_nothing_was_audited_no_difference_is_reported(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    trajectories = [make_trajectory([make_step(logprobs=[])])]
    with pytest.warns(UserWarning, match="unaudited"):
        got = train_on(Recorder(), trajectories, [1], [0], experiment(), 0)  # type: ignore[arg-type]
    assert got["audit/missing_steps"] == 1
    assert "audit/logprob_diff_max" not in got and "audit/logprob_diff_mean" not in got


# --- importance, rejection


def test_importance_of_every_token_by_hand(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    """The learner says -1 everywhere; the sampler said -1, -1.5, -2.5 and -0.5; cap 2."""
    steps = [make_step(logprobs=[-1.0, -1.5, -2.5]), make_step([7], logprobs=[-0.5])]
    learner = Recorder()
    e = experiment(loss={"importance": "truncated"}, audit={"max_diff": 2.0})
    got = train_on(learner, [make_trajectory(steps)], [1, 1], [0, 0], e, 0)  # type: ignore[arg-type]
    first, second = (r.importance for r in learner.batches[0])
    assert first is not None and second is not None
    assert first.tolist() == pytest.approx([1, np.exp(0.5), 2])
    assert second.tolist() == pytest.approx([np.exp(-0.5)])
    assert got["loss/importance_mean"] == pytest.approx((3 + np.exp(0.5) + np.exp(-0.5)) / 4)
    assert got["loss/importance_capped_frac"] == 0.25


def test_without_importance_no_token_is_weighed_by_it(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    learner = Recorder()
    got = train_on(learner, [make_trajectory([make_step()])], [1], [0], experiment(), 0)  # type: ignore[arg-type]
    assert learner.batches[0][0].importance is None
    assert not [name for name in got if "importance" in name]


def test_fault_15_the_correction_trains_the_whole_distribution_and_audits_the_sampled_one(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    """Logits [2, 1, 0], top_k 2: a token 0 is weighed .910 and its old log-prob is log .665."""

    class ThreeWords(Recorder):
        def logprobs(self, rows: Sequence[Any], sampling: Any = None, **_: Any) -> list[np.ndarray]:
            logits = torch.tensor([[2.0, 1.0, 0.0]])
            value = logprobs_of(logits, torch.tensor([0]), sampling)
            return [np.full(r.targets, value.item()) for r in rows]

    sampled = logprobs_of(torch.tensor([[2.0, 1.0]]), torch.tensor([0])).item()
    trajectories = [make_trajectory([make_step([0, 0], logprobs=[sampled, sampled])])]
    learner = ThreeWords()
    e = experiment(rollout={"top_k": 2}, loss={"importance": "truncated"})
    got = train_on(learner, trajectories, [1], [0], e, 0)  # type: ignore[arg-type]
    assert got["audit/logprob_diff_max"] == pytest.approx(0, abs=1e-6)
    ((row,),) = learner.batches
    assert row.importance is not None and row.old_logprobs is not None
    np.testing.assert_allclose(row.importance, [0.910, 0.910], atol=5e-4)
    np.testing.assert_allclose(row.old_logprobs, np.log([0.665, 0.665]), atol=1e-3)


def test_fault_20_a_rejected_rollout_is_not_trained_and_dilutes_no_weight(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    """Its reward is missing; with KL it would still have a gradient."""
    trajectories = [
        make_trajectory([make_step()], rollout=i, reward=r)
        for i, r in enumerate([0, 0, 1, float("nan")])
    ]
    learner = Recorder()
    e = experiment(loss={"kl": 0.1})
    train_on(learner, trajectories, [-0.707, -0.707, 1.414, 0], [0] * 4, e, 0)  # type: ignore[arg-type]
    (batch,) = learner.batches
    assert [r.advantages[0] for r in batch] == [-0.707, -0.707, 1.414]
    assert [r.weight for r in batch] == pytest.approx([1 / 9] * 3)


def test_fault_17_a_trajectory_without_a_reward_is_neither_trained_nor_counted(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    """Rewards [1, NaN, 3]: the update is that of the two others alone, N = 2 and not 3."""
    nan = float("nan")
    steps = [make_step([7, 8], mem_spans=[(0, 1)]), make_step([7, 8, 9])]
    trajectories = [make_trajectory(steps, rollout=i, reward=r) for i, r in enumerate([1, nan, 3])]
    learner, e = Recorder(), experiment(learner={"minibatches": 2})
    got = train_on(learner, trajectories, [-1, -1, 0, 0, 1, 1], [0, 0, 9, 9, 0, 0], e, 0)  # type: ignore[arg-type]
    assert [len(batch) for batch in learner.batches] == [2, 2]  # a trajectory a minibatch
    assert sorted(r.advantages[0] for b in learner.batches for r in b) == [-1, -1, 1, 1]
    assert [r.weight for b in learner.batches for r in b] == pytest.approx([1 / 5] * 4)
    assert got["audit/logprob_diff_max"] == 0
    whole = Recorder()
    train_on(whole, trajectories, [-1, -1, 0, 0, 1, 1], [0] * 6, experiment(), 0)  # type: ignore[arg-type]
    assert [r.weight for r in whole.batches[0]] == pytest.approx([1 / 10] * 4)


def test_fault_17_a_trajectory_without_a_reward_is_audited_all_the_same(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    wrong = make_trajectory([make_step(logprobs=[-1.0, -1.5, -1.0])], reward=float("nan"))
    with pytest.raises(AuditError, match="q rollout 0 step 0 at output token 1"):
        train_on(Recorder(), [wrong], [0], [0], experiment(), 0)  # type: ignore[arg-type]


def test_the_weight_of_a_memory_follows_its_schedule(
    make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    """A^T 1, A^M 2: 1 + 2 w on the memory's token, w = 1, .75, .5, .25, 0."""
    e = experiment(iterations=5, memory={"schedule": "linear"})  # type: ignore[arg-type]
    step = make_step([7, 8], mem_spans=[(1, 2)])
    learner = Recorder()
    for iteration in range(5):
        train_on(learner, [make_trajectory([step])], [1], [2], e, iteration)  # type: ignore[arg-type]
    assert [b[0].advantages.tolist() for b in learner.batches] == [
        [1, 3], [1, 2.5], [1, 2], [1, 1.5], [1, 1]
    ]  # fmt: skip


# --- the audit alone


def test_audit_metrics_by_hand() -> None:
    got = audit(
        [np.array([-1.0, -2.0]), np.array([-3.0])],
        [[-1.0, -2.0004], [-3.0002]],
        ["a", "b"],
        Audit(),
        exact=True,
    )
    assert got["audit/logprob_diff_max"] == pytest.approx(4e-4, rel=1e-6)
    assert got["audit/logprob_diff_mean"] == pytest.approx(2e-4, rel=1e-6)


def test_audit_bounds_the_maximum_in_float32_and_the_mean_in_bfloat16() -> None:
    learner, sampler = [np.array([-1.0] * 10)], [[-1.0] * 9 + [-1.5]]  # max .5, mean .05
    with pytest.raises(AuditError, match=r"5\.00e-01 \(bound audit\.max_diff = 0\.1\)"):
        audit(learner, sampler, ["a"], Audit(max_diff=0.1), exact=True)
    audit(learner, sampler, ["a"], Audit(mean_diff=0.1), exact=False)
    with pytest.raises(AuditError, match=r"5\.00e-02 \(bound audit\.mean_diff = 0\.01\)"):
        audit(learner, sampler, ["a"], Audit(mean_diff=0.01), exact=False)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
@pytest.mark.parametrize("exact", [True, False])
def test_audit_names_a_log_prob_that_is_not_finite(bad: float, exact: bool) -> None:
    with pytest.raises(AuditError, match="worst in b at output token 1"):
        audit(
            [np.array([-1.0]), np.array([-1.0, -1.0])], [[-1.0001], [-1.0, bad]], ["a", "b"],
            Audit(), exact=exact,
        )  # fmt: skip


def test_audit_of_nothing_passes() -> None:
    assert audit([], [], [], Audit(), exact=True) == {
        "audit/logprob_diff_mean": 0, "audit/logprob_diff_max": 0
    }  # fmt: skip
