"""The learner: log-probs, updates and what must not move it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import Learner, Loss
from mempo.learners.loss import token_weights
from mempo.learners.packing import Row, sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.weights import digest

LENGTHS = (1, 2, 3, 4, 5, 6)
Make = Callable[..., TorchLearner]


@pytest.fixture
def make(tiny_policy: Any, atlas_codec: Codec) -> Make:
    """make(reference=False, **settings): learners of equal weights, none sharing them."""
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(1.0)  # a sharper distribution than a fresh policy's

    def build(reference: bool = False, **settings: Any) -> TorchLearner:
        return TorchLearner(
            deepcopy(tiny_policy), atlas_codec, Learner(**settings), reference=reference
        )

    return build


def sample_rows(lengths: Sequence[int] = LENGTHS, vocabulary: int = 70) -> list[Row]:
    rng = np.random.default_rng(1)
    return [
        sampled_row(
            rng.integers(3, vocabulary, 3).tolist(), rng.integers(3, vocabulary, n).tolist(), n
        )
        for n in lengths
    ]


def train_rows(
    learner: TorchLearner,
    rows: Sequence[Row],
    *,
    sampling: Sampling | None = None,
    advantage: float | None = None,
    owners: Sequence[int] | None = None,
) -> list[TrainRow]:
    """Rows on policy; advantages random unless given, a trajectory a row unless given."""
    rng = np.random.default_rng(2)
    old = learner.logprobs(rows, sampling)
    reference = learner.logprobs(rows, sampling, reference=True) if learner.reference else None
    weights = token_weights([r.targets for r in rows], owners or range(len(rows)))
    return [
        TrainRow(
            row,
            np.full(row.targets, advantage) if advantage is not None else rng.normal(size=row.targets),
            old[i],
            float(weights[i]),
            reference[i] if reference else None,
        )
        for i, row in enumerate(rows)
    ]


def gradients(learner: TorchLearner, rows: Sequence[TrainRow], loss: Loss) -> list[torch.Tensor]:
    """The gradients of an update, caught before the optimiser sees them."""
    caught: list[torch.Tensor] = []

    def catch(lr: float) -> float:
        caught.extend(
            torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in learner.model.parameters()
        )
        learner.optimizer.zero()
        return 0.0

    learner.optimizer.step = catch  # type: ignore[method-assign]
    learner.update(rows, loss)
    return caught


# --- log-probs


def test_log_probs_are_those_of_an_unbatched_forward_pass(make: Make) -> None:
    learner, rows = make(micro_tokens=20), sample_rows()
    got = learner.logprobs(rows, Sampling(0.7))
    for row, values in zip(rows, got, strict=True):
        with torch.no_grad():
            logits = learner.model(input_ids=torch.tensor([row.ids])).logits[0].double() / 0.7
        logp = logits.log_softmax(-1)
        expected = [logp[i - 1, t].item() for i, t in enumerate(row.ids) if row.mask[i]]
        np.testing.assert_allclose(values, expected, atol=1e-5)
    assert learner.tokens == sum(len(r.ids) for r in rows)


def test_rows_without_targets_have_no_log_probs(make: Make) -> None:
    learner = make()
    got = learner.logprobs([Row([3, 4], [False, False]), Row([3, 4], [False, True])])
    assert [len(g) for g in got] == [0, 1]
    assert learner.logprobs([]) == []


def test_a_missing_reference_is_named(make: Make) -> None:
    with pytest.raises(ValueError, match=r"loss\.kl"):
        make().logprobs(sample_rows(), reference=True)


# --- updates


@pytest.mark.parametrize("micro_tokens", [9, 18, 10_000])
def test_fault_12_first_update_clips_nothing_and_has_no_kl(make: Make, micro_tokens: int) -> None:
    """Micro-batches of 1, 2 and 4 rows of up to 9 tokens."""
    learner = make(reference=True, micro_tokens=micro_tokens, lr=1e-3)
    got = learner.update(
        train_rows(learner, sample_rows((6, 6, 6, 6))), Loss(kl=0.1, clip=1e-4)
    )
    assert got["clip_frac"] == 0
    assert abs(got["kl"]) < 1e-9
    assert got["skipped"] == 0 and got["grad_norm"] > 0


def test_fault_11_ratio_is_one_at_temperature_0_7(make: Make) -> None:
    rows, sampling = sample_rows(), Sampling(0.7)
    old = make(micro_tokens=9).logprobs(rows, sampling)
    new = make(micro_tokens=10_000).logprobs(rows, sampling)
    ratio = np.exp(np.concatenate(new) - np.concatenate(old))
    assert abs(ratio - 1).max() < 1e-5
    learner = make(micro_tokens=18)
    batch = train_rows(learner, rows, sampling=sampling, advantage=1.0)
    # All advantages 1 and ratios 1: the loss is minus the sum of the weights.
    assert learner.update(batch, Loss(), sampling)["policy"] == pytest.approx(-1, abs=1e-5)


def test_on_policy_loss_is_minus_the_weighted_advantages(make: Make) -> None:
    learner = make()
    batch = train_rows(learner, sample_rows())
    expected = -sum(r.weight * r.advantages.sum() for r in batch)
    assert learner.update(batch, Loss())["policy"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("aggregation", ["trajectory_mean", "token_mean", "constant"])
def test_fault_28_micro_batches_of_1_2_3_and_6_give_equal_gradients(
    make: Make, aggregation: str
) -> None:
    owners = [0, 0, 1, 1, 1, 2]
    rows = sample_rows()
    base = train_rows(make(), rows)
    weights = token_weights([r.targets for r in rows], owners, aggregation=aggregation)
    batch = [
        TrainRow(r.row, r.advantages, r.old_logprobs - 0.1, float(w), r.old_logprobs + 0.3)
        for r, w in zip(base, weights, strict=True)
    ]
    # Rows of 4..9 tokens, longest first: budgets that make batches of 1, of 2, of 3 and of 6.
    loss = Loss(kl=0.05)
    whole = gradients(make(reference=True, micro_tokens=54), batch, loss)
    scale = max(float(g.abs().max()) for g in whole)
    assert scale > 0
    for budget in (1, 18, 27):
        split = gradients(make(reference=True, micro_tokens=budget), batch, loss)
        for a, b in zip(whole, split, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)


def test_fault_04_no_gradient_reaches_masked_tokens(make: Make) -> None:
    """A sentinel in the reply and behind the last target: nothing flows to it as a target.

    The sentinel's row of an untied output head has a gradient of softmax alone, pi(sentinel), and
    none of -1; as the input behind the last target it has none at all.
    """
    learner = make()
    learner.model.lm_head.weight = torch.nn.Parameter(learner.model.lm_head.weight.detach().clone())
    sentinel = 70
    ids = [3, sentinel, 5, 6, 7, sentinel, sentinel]
    row = Row(ids, [False, False, False, True, True, False, False])
    batch = train_rows(learner, [row], advantage=1.0)
    with torch.no_grad():
        hidden = learner.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        pi = learner.model.lm_head(hidden).softmax(-1)
    learner.optimizer.step = lambda lr: 0.0  # type: ignore[method-assign]
    learner.update(batch, Loss())
    head = learner.model.lm_head.weight.grad
    # d loss / d logits = w (pi - onehot) at the positions before the targets (2 and 3)
    expected = sum(0.5 * pi[i, sentinel] * hidden[i] for i in (2, 3))
    torch.testing.assert_close(head[sentinel], expected, atol=1e-6, rtol=1e-4)

    alone = make()
    got = gradients(alone, [TrainRow(Row(ids[:5], row.mask[:5]), *_rest(batch[0]))], Loss())
    tail = gradients(make(), batch, Loss())
    for a, b in zip(got, tail, strict=True):  # what follows the last target plays no part
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def _rest(row: TrainRow) -> tuple[np.ndarray, np.ndarray, float]:
    return row.advantages, row.old_logprobs, row.weight


def test_fault_13_log_probs_of_masked_tokens_cannot_enter(make: Make) -> None:
    """Full-length log-probs with 1e9 at masked positions are cut by the mask to the targets."""
    rows = sample_rows()
    results = []
    for junk in (0.0, 1e9):
        learner = make(lr=1e-2)
        batch = []
        for r in train_rows(learner, rows):
            full = np.full(len(r.row.ids), junk)
            full[np.array(r.row.mask)] = r.old_logprobs
            old = full[np.array(r.row.mask)]
            batch.append(TrainRow(r.row, r.advantages, old, r.weight))
        learner.update(batch, Loss())
        results.append(digest(learner.model))
    assert results[0] == results[1]


def test_fault_29_a_fully_masked_row_changes_nothing(make: Make) -> None:
    rows = sample_rows((4,))
    masked = Row([3, 4, 5, 6], [False] * 4)
    alone, both = make(lr=1e-2), make(lr=1e-2)
    one = alone.update(train_rows(alone, rows), Loss())
    two = both.update(train_rows(both, [*rows, masked]), Loss())
    assert one == two
    assert digest(alone.model) == digest(both.model)


def test_fault_29_all_masked_is_a_counted_skip(make: Make) -> None:
    learner = make(lr=1e-2)
    before = digest(learner.model)
    masked = Row([3, 4, 5, 6], [False] * 4)
    got = learner.update(train_rows(learner, [masked, masked], advantage=1.0), Loss())
    assert got["skipped"] == 1 and got["policy"] == 0 and got["grad_norm"] == 0
    assert digest(learner.model) == before
    assert learner.update([], Loss(kl=0.1))["skipped"] == 1


def test_fault_19_zero_advantages_leave_the_weights_bit_identical(make: Make) -> None:
    """Weight decay and Adam's momentum would move them, so the step is not taken."""
    learner = make(lr=1e-2, weight_decay=0.1)
    learner.update(train_rows(learner, sample_rows()), Loss())  # momentum is there
    before = digest(learner.model)
    got = learner.update(train_rows(learner, sample_rows(), advantage=0.0), Loss())
    assert got["skipped"] == 1
    assert digest(learner.model) == before


def test_kl_alone_is_reason_enough_for_a_step(make: Make) -> None:
    learner = make(reference=True, lr=1e-2)
    learner.update(train_rows(learner, sample_rows()), Loss(kl=1.0))
    before = digest(learner.model)
    got = learner.update(train_rows(learner, sample_rows(), advantage=0.0), Loss(kl=1.0))
    assert got["skipped"] == 0 and got["kl"] > 0
    assert digest(learner.model) != before


def test_an_update_raises_what_was_good_and_lowers_what_was_bad(make: Make) -> None:
    learner = make(lr=1e-3)
    rows = sample_rows((5, 5))
    batch = train_rows(learner, rows)
    for r, a in zip(batch, (1.0, -1.0), strict=True):
        r.advantages[:] = a
    before = [x.sum() for x in learner.logprobs(rows)]
    learner.update(batch, Loss())
    after = [x.sum() for x in learner.logprobs(rows)]
    assert after[0] > before[0] and after[1] < before[1]


def test_fault_31_entropy_is_a_mean_over_trained_tokens(make: Make) -> None:
    learner = make(micro_tokens=9)
    rows = [*sample_rows(), Row([3, 4, 5], [False] * 3)]
    expected = []
    for row in rows:
        with torch.no_grad():
            logp = learner.model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
        h = -(logp.exp() * logp).sum(-1)
        expected += [h[i - 1].item() for i, m in enumerate(row.mask) if m]
    got = learner.update(train_rows(learner, rows), Loss())
    assert got["entropy"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_clip_share_and_kl_are_means_whatever_the_aggregation(make: Make) -> None:
    rows = sample_rows()
    for aggregation in ("trajectory_mean", "token_mean", "constant"):
        learner = make(reference=True)
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
    make: Make, sampling: Sampling, estimator: Any
) -> None:
    """Tokens leave the truncated set of the new policy, or were never in the reference's."""
    learner = make(reference=True, lr=3e-2)
    rows = sample_rows()
    batch = train_rows(learner, rows, sampling=sampling)
    for _ in range(3):
        got = learner.update(batch, Loss(kl=0.1, kl_estimator=estimator), sampling)
        assert np.isfinite(list(got.values())).all()
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


# --- supervised


def test_supervise_returns_the_mean_loss_per_target(make: Make) -> None:
    learner, rows = make(micro_tokens=18), sample_rows()
    expected = -np.concatenate(learner.logprobs(rows)).mean()
    assert learner.supervise(rows, 1e-2) == pytest.approx(expected, rel=1e-5)
    assert -np.concatenate(learner.logprobs(rows)).mean() < expected


def test_supervise_does_not_depend_on_micro_batches(make: Make) -> None:
    rows, results = sample_rows(), []
    for budget in (1, 18, 10_000):
        learner = make(micro_tokens=budget, grad_clip=1e9)
        learner.optimizer.step = lambda lr: 0.0  # type: ignore[method-assign]
        learner.supervise(rows, 1e-3)
        results.append([p.grad.clone() for p in learner.model.parameters()])
    scale = max(float(g.abs().max()) for g in results[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)


def test_supervise_without_targets_changes_nothing(make: Make) -> None:
    learner = make()
    before = digest(learner.model)
    assert learner.supervise([Row([3, 4], [False, False])], 1e-2) == 0
    assert digest(learner.model) == before


# --- save


def test_a_saved_learner_loads_as_a_transformers_folder(
    make: Make, atlas_codec: Codec, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = make(lr=1e-2)
    learner.update(train_rows(learner, sample_rows()), Loss())
    learner.save(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert digest(model) == digest(learner.model)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert Codec(tokenizer).encode("<mem>nothing</mem>") == atlas_codec.encode("<mem>nothing</mem>")

    resumed = TorchLearner(model, atlas_codec, learner.settings)
    resumed.optimizer.restore(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for other in (learner, resumed):
        other.update(train_rows(other, sample_rows()), Loss())
    assert digest(resumed.model) == digest(learner.model)
