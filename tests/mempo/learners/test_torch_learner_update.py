"""Updates of the learner, and what must not move it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Loss
from mempo.learners.loss import token_weights
from mempo.learners.torch_learner import TrainRow
from mempo.policies.distribution import Sampling
from mempo.policies.weights import digest
from mempo.types import Row


@pytest.mark.parametrize("micro_tokens", [9, 18, 10_000])
def test_fault_12_first_update_clips_nothing_and_has_no_kl(bench: Any, micro_tokens: int) -> None:
    """Micro-batches of 1, 2 and 4 rows of up to 9 tokens."""
    learner = bench.learner(reference=True, micro_tokens=micro_tokens, lr=1e-3)
    got = learner.update(
        bench.train_rows(learner, bench.rows((6, 6, 6, 6))), Loss(kl=0.1, clip=1e-4)
    )
    assert got["clip_frac"] == 0
    assert abs(got["kl"]) < 1e-9
    assert got["skipped"] == 0 and got["grad_norm"] > 0


def test_fault_11_ratio_is_one_at_temperature_0_7(bench: Any) -> None:
    rows, sampling = bench.rows(), Sampling(0.7)
    old = bench.learner(micro_tokens=9).logprobs(rows, sampling)
    new = bench.learner(micro_tokens=10_000).logprobs(rows, sampling)
    ratio = np.exp(np.concatenate(new) - np.concatenate(old))
    assert abs(ratio - 1).max() < 1e-5
    learner = bench.learner(micro_tokens=18)
    batch = bench.train_rows(learner, rows, sampling=sampling, advantage=1.0)
    # All advantages 1 and ratios 1: the loss is minus the sum of the weights.
    assert learner.update(batch, Loss(), sampling)["policy"] == pytest.approx(-1, abs=1e-5)


def test_on_policy_loss_is_minus_the_weighted_advantages(bench: Any) -> None:
    learner = bench.learner()
    batch = bench.train_rows(learner, bench.rows())
    expected = -sum(r.weight * r.advantages.sum() for r in batch)
    assert learner.update(batch, Loss())["policy"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("aggregation", ["trajectory_mean", "token_mean", "constant"])
def test_fault_28_micro_batches_of_1_2_3_and_6_give_equal_gradients(
    bench: Any, aggregation: str
) -> None:
    owners = [0, 0, 1, 1, 1, 2]
    rows = bench.rows()
    base = bench.train_rows(bench.learner(), rows)
    weights = token_weights([r.targets for r in rows], owners, aggregation=aggregation)
    batch = [
        TrainRow(r.row, r.advantages, r.old_logprobs - 0.1, float(w), r.old_logprobs + 0.3)
        for r, w in zip(base, weights, strict=True)
    ]
    # Rows of 4..9 tokens, longest first: budgets that make batches of 1, of 2, of 3 and of 6.
    loss = Loss(kl=0.05)
    whole, _ = bench.gradients(bench.learner(reference=True, micro_tokens=54), batch, loss)
    scale = max(float(g.abs().max()) for g in whole)
    assert scale > 0
    for budget in (1, 18, 27):
        split, _ = bench.gradients(bench.learner(reference=True, micro_tokens=budget), batch, loss)
        for a, b in zip(whole, split, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)


def test_fault_04_no_gradient_reaches_masked_tokens(bench: Any) -> None:
    """A sentinel in the reply and behind the last target: nothing flows to it as a target.

    The sentinel's row of an untied output head has a gradient of softmax alone, pi(sentinel), and
    none of -1; as the input behind the last target it has none at all.
    """
    learner = bench.learner()
    learner.model.lm_head.weight = torch.nn.Parameter(learner.model.lm_head.weight.detach().clone())
    sentinel = 70
    ids = [3, sentinel, 5, 6, 7, sentinel, sentinel]
    row = Row(ids, [False, False, False, True, True, False, False])
    batch = bench.train_rows(learner, [row], advantage=1.0)
    with torch.no_grad():
        hidden = learner.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        pi = learner.model.lm_head(hidden).softmax(-1)
    learner.optimizer.step = lambda lr: 0.0  # type: ignore[method-assign]
    learner.update(batch, Loss())
    head = learner.model.lm_head.weight.grad
    # d loss / d logits = w (pi - onehot) at the positions before the targets (2 and 3)
    expected = sum(0.5 * pi[i, sentinel] * hidden[i] for i in (2, 3))
    assert head is not None
    torch.testing.assert_close(head[sentinel], expected, atol=1e-6, rtol=1e-4)

    alone = bench.learner()
    got, _ = bench.gradients(
        alone, [TrainRow(Row(ids[:5], row.mask[:5]), *_rest(batch[0]))], Loss()
    )
    tail, _ = bench.gradients(bench.learner(), batch, Loss())
    for a, b in zip(got, tail, strict=True):  # what follows the last target plays no part
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def _rest(row: TrainRow) -> tuple[np.ndarray, np.ndarray | None, float]:
    return row.advantages, row.old_logprobs, row.weight


def test_fault_13_log_probs_of_masked_tokens_cannot_enter(bench: Any) -> None:
    """Full-length log-probs with 1e9 at masked positions are cut by the mask to the targets."""
    rows = bench.rows()
    results = []
    for junk in (0.0, 1e9):
        learner = bench.learner(lr=1e-2)
        batch = []
        for r in bench.train_rows(learner, rows):
            full = np.full(len(r.row.ids), junk)
            full[np.array(r.row.mask)] = r.old_logprobs
            old = full[np.array(r.row.mask)]
            batch.append(TrainRow(r.row, r.advantages, old, r.weight))
        learner.update(batch, Loss())
        results.append(digest(learner.model))
    assert results[0] == results[1]


def test_fault_29_a_fully_masked_row_changes_nothing(bench: Any) -> None:
    rows = bench.rows((4,))
    masked = Row([3, 4, 5, 6], [False] * 4)
    alone, both = bench.learner(lr=1e-2), bench.learner(lr=1e-2)
    one = alone.update(bench.train_rows(alone, rows), Loss())
    two = both.update(bench.train_rows(both, [*rows, masked]), Loss())
    assert one == two
    assert digest(alone.model) == digest(both.model)


def test_fault_29_all_masked_is_a_counted_skip(bench: Any) -> None:
    learner = bench.learner(lr=1e-2)
    before = digest(learner.model)
    masked = Row([3, 4, 5, 6], [False] * 4)
    got = learner.update(bench.train_rows(learner, [masked, masked], advantage=1.0), Loss())
    assert got["skipped"] == 1 and got["policy"] == 0 and got["grad_norm"] == 0
    assert digest(learner.model) == before
    assert learner.update([], Loss(kl=0.1))["skipped"] == 1


def test_fault_19_zero_advantages_leave_the_weights_bit_identical(bench: Any) -> None:
    """Weight decay and Adam's momentum would move them, so the step is not taken."""
    learner = bench.learner(lr=1e-2, weight_decay=0.1)
    learner.update(bench.train_rows(learner, bench.rows()), Loss())  # momentum is there
    before = digest(learner.model)
    got = learner.update(bench.train_rows(learner, bench.rows(), advantage=0.0), Loss())
    assert got["skipped"] == 1
    assert digest(learner.model) == before


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_alone_takes_steps_that_lead_back_to_the_reference(bench: Any, estimator: Any) -> None:
    learner = bench.learner(reference=True, lr=3e-3)
    batch = bench.train_rows(learner, bench.rows(), advantage=1.0)
    learner.update(batch, Loss())
    back = bench.train_rows(learner, bench.rows(), advantage=0.0)
    kl = [learner.update(back, Loss(kl=1.0, kl_estimator=estimator))["kl"] for _ in range(8)]
    assert kl[0] > 1e-4
    assert min(kl) < kl[0] / 2


def test_an_update_raises_what_was_good_and_lowers_what_was_bad(bench: Any) -> None:
    learner = bench.learner(lr=1e-3)
    rows = bench.rows((5, 5))
    batch = bench.train_rows(learner, rows)
    for r, a in zip(batch, (1.0, -1.0), strict=True):
        r.advantages[:] = a
    before = [x.sum() for x in learner.logprobs(rows)]
    learner.update(batch, Loss())
    after = [x.sum() for x in learner.logprobs(rows)]
    assert after[0] > before[0] and after[1] < before[1]


def test_fault_31_entropy_is_a_mean_over_trained_tokens(bench: Any) -> None:
    learner = bench.learner(micro_tokens=9)
    rows = [*bench.rows(), Row([3, 4, 5], [False] * 3)]
    expected = []
    for row in rows:
        with torch.no_grad():
            logp = learner.model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
        h = -(logp.exp() * logp).sum(-1)
        expected += [h[i - 1].item() for i, m in enumerate(row.mask) if m]
    got = learner.update(bench.train_rows(learner, rows), Loss())
    assert got["entropy"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_clip_share_and_kl_are_means_whatever_the_aggregation(bench: Any) -> None:
    rows = bench.rows()
    for aggregation in ("trajectory_mean", "token_mean", "constant"):
        learner = bench.learner(reference=True)
        old = learner.logprobs(rows)
        weights = token_weights([r.targets for r in rows], range(6), aggregation=aggregation)
        batch = [  # every ratio e, every log-prob 0.5 above the reference
            TrainRow(r, np.ones(r.targets), o - 1, float(w), o - 0.5)
            for r, o, w in zip(rows, old, weights, strict=True)
        ]
        got = learner.update(batch, Loss(kl=0.1))
        assert got["clip_frac"] == pytest.approx(1, abs=1e-5)
        assert got["kl"] == pytest.approx(0.125, abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(top_k=3), Sampling(top_p=0.5)])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_truncated_sampling_stays_finite_after_the_policy_has_moved(
    bench: Any, sampling: Sampling, estimator: Any
) -> None:
    """Tokens leave the truncated set of the new policy, or were never in the reference's."""
    learner = bench.learner(reference=True, lr=3e-2)
    rows = bench.rows()
    batch = bench.train_rows(learner, rows, sampling=sampling)
    for _ in range(3):
        got = learner.update(batch, Loss(kl=0.1, kl_estimator=estimator), sampling)
        assert np.isfinite(list(got.values())).all()
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


def test_recomputed_activations_change_no_gradient(bench: Any) -> None:
    plain, saving = (bench.learner(activation_checkpointing=on) for on in (False, True))
    calls: list[int] = []
    layer = saving.model.model.layers[1]
    layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    rows = bench.train_rows(plain, bench.rows())
    expected, _ = bench.gradients(plain, rows, Loss())
    got, _ = bench.gradients(saving, rows, Loss())
    assert len(calls) == 2  # once forward, once again on the way back
    for a, b in zip(expected, got, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-8)
