"""Weights of tokens and PPO clip: by hand, naive loops, a softmax over three tokens."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.learners.loss import ppo_clip, token_weights, truncated_importance

LOGITS = [2.0, 1.0, 0.0]
AGGREGATIONS = ("trajectory_mean", "sequence_mean", "token_mean", "constant")


def t(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- weights of tokens


def test_trajectory_mean_by_hand() -> None:
    """Trajectory 7 has steps of 2 and 3 tokens, trajectory 9 one of 4: 1/(2*5) and 1/(2*4)."""
    got = token_weights([2, 3, 4], [7, 7, 9])
    np.testing.assert_allclose(got, [0.1, 0.1, 0.125])


def test_sequence_mean_by_hand() -> None:
    """Three steps, whosever they are: 1/(3*2), 1/(3*3), 1/(3*4)."""
    got = token_weights([2, 3, 4], [7, 7, 9], aggregation="sequence_mean")
    np.testing.assert_allclose(got, [1 / 6, 1 / 9, 1 / 12])


def test_token_mean_by_hand() -> None:
    got = token_weights([2, 3, 5], [7, 7, 9], aggregation="token_mean")
    np.testing.assert_allclose(got, [0.1, 0.1, 0.1])


def test_constant_by_hand() -> None:
    got = token_weights([2, 3, 4], [7, 7, 9], aggregation="constant", constant=50)
    np.testing.assert_allclose(got, [0.01, 0.01, 0.01])  # 1 / (2 * 50)


def test_fault_29_rows_without_targets_weigh_and_count_nothing() -> None:
    np.testing.assert_allclose(token_weights([4, 0], [0, 1]), [0.25, 0])
    np.testing.assert_allclose(token_weights([4, 0], [0, 0]), [0.25, 0])
    np.testing.assert_allclose(token_weights([4, 0], [0, 1], aggregation="token_mean"), [0.25, 0])
    constant = token_weights([4, 0], [0, 1], aggregation="constant", constant=10)
    np.testing.assert_allclose(constant, [0.1, 0])
    sequences = token_weights([4, 0, 1], [0, 0, 1], aggregation="sequence_mean")
    np.testing.assert_allclose(sequences, [1 / 8, 0, 1 / 2])
    for aggregation in AGGREGATIONS:
        assert token_weights([0, 0], [0, 1], aggregation=aggregation).tolist() == [0, 0]
        assert token_weights([], [], aggregation=aggregation).shape == (0,)


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loss\.aggregation"):
        token_weights([1], [0], aggregation="mean")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12))
def test_weights_sum_to_one_and_share_equally(rows: list[tuple[int, int]]) -> None:
    tokens, owner = [n for n, _ in rows], [o for _, o in rows]
    if not sum(tokens):
        return
    for aggregation in ("trajectory_mean", "sequence_mean", "token_mean"):
        weights = token_weights(tokens, owner, aggregation=aggregation)
        assert (weights * tokens).sum() == pytest.approx(1.0)
    weights = token_weights(tokens, owner)
    shares = [sum(w * n for w, n, o in zip(weights, tokens, owner, strict=True) if o == k)
              for k in set(owner)]  # fmt: skip
    trained = [s for s in shares if s > 0]
    assert trained == pytest.approx([1 / len(trained)] * len(trained))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_fault_32_duplicating_the_batch_leaves_the_loss_unchanged(aggregation: str) -> None:
    tokens, owner, values = [2, 3, 4], [0, 0, 1], np.array([0.5, -1.0, 2.0])

    def loss(copies: int) -> float:
        weights = token_weights(
            tokens * copies, [o + 2 * c for c in range(copies) for o in owner],
            aggregation=aggregation, constant=100,
        )  # fmt: skip
        return float((weights * np.tile(tokens, copies) * np.tile(values, copies)).sum())

    assert loss(2) == pytest.approx(loss(1))


# --- importance of what the sampler drew


def test_fault_15_the_whole_distribution_over_what_was_sampled_from() -> None:
    """Logits [2, 1, 0], top_k 2: pi = .665, .245; mu = .731, .269: both weigh .910, not 1."""
    pi = t(LOGITS).log_softmax(-1)[:2]
    mu = t(LOGITS[:2]).log_softmax(-1)
    np.testing.assert_allclose(truncated_importance(pi, mu, cap=2), [0.910, 0.910], atol=5e-4)


def test_importance_is_capped_above_alone_and_stays_finite() -> None:
    old, mu = [log(0.5), log(0.5), -1.0, 0.0, -1e9], [log(0.1), log(0.9), -1.0, -1e9, 0.0]
    got = truncated_importance(old, mu, cap=2)
    np.testing.assert_allclose(got, [2, 5 / 9, 1, 2, 0])


# --- PPO clip


def naive_ppo(
    logp: list[float], old: list[float], adv: list[float], weight: list[float], clip: float,
    high: float,
) -> tuple[float, float]:  # fmt: skip
    """Loss and clip share of one token after the other."""
    loss = share = 0.0
    for lp, o, a, w in zip(logp, old, adv, weight, strict=True):
        r = exp(lp - o)
        clipped = min(max(r, 1 - clip), 1 + high)
        loss -= w * min(r * a, clipped * a)
        share += w * (clipped * a < r * a)
    return loss, share


numbers = st.floats(-3, 3).map(lambda x: round(x, 3))
token = st.tuples(numbers, numbers, numbers, st.floats(0, 1).map(lambda x: round(x, 3)))


@given(
    st.lists(token, min_size=1, max_size=20),
    st.floats(0.05, 0.5),
    st.one_of(st.none(), st.floats(0.05, 3)),
)
def test_ppo_clip_equals_a_naive_loop(
    tokens: list[tuple], clip: float, clip_high: float | None
) -> None:
    logp, old, adv, weight = (list(column) for column in zip(*tokens, strict=True))
    loss, metrics = ppo_clip(t(logp), t(old), t(adv), t(weight), clip=clip, clip_high=clip_high)
    expected, share = naive_ppo(logp, old, adv, weight, clip, clip_high or clip)
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    assert metrics["clip_frac"].item() == pytest.approx(share, abs=1e-6)
    ratio = sum(w * exp(lp - o) for lp, o, w in zip(logp, old, weight, strict=True))
    assert metrics["ratio_mean"].item() == pytest.approx(ratio, abs=1e-6)


def test_ppo_clip_by_hand() -> None:
    """Ratios 1.5 and 0.5, clip 0.2: what is cut is what would go on improving."""
    old, logp = t([0, 0, 0, 0]), t([log(1.5), log(1.5), log(0.5), log(0.5)])
    adv, weight = t([1, -1, 1, -1]), t([0.25] * 4)
    loss, metrics = ppo_clip(logp, old, adv, weight, clip=0.2)
    # min terms: 1.2 (cut), -1.5, 0.5, -0.8 (cut)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)
    assert metrics["clip_frac"].item() == 0.5


def test_clip_higher_by_hand() -> None:
    """Ratio 1.25, clips 0.2 and 0.28: a good token may still grow; a bad one never was bounded
    above, and below the bound stays 1 - 0.2."""
    old, logp = t([0, 0, 0, 0]), t([log(1.25), log(1.5), log(1.5), log(0.7)])
    adv, weight = t([1, 1, -1, -1]), t([1] * 4)
    logp.requires_grad_()
    loss, metrics = ppo_clip(logp, old, adv, weight, clip=0.2, clip_high=0.28)
    # min terms: 1.25, 1.28 (cut), -1.5, -0.8 (cut)
    assert loss.item() == pytest.approx(-(1.25 + 1.28 - 1.5 - 0.8))
    assert metrics["clip_frac"].item() == 2
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-1.25, 0, 1.5, 0], atol=1e-12)


def test_importance_weighs_the_loss_and_not_the_metrics() -> None:
    logp = t([log(1.5), log(1.1)])
    loss, metrics = ppo_clip(
        logp, t([0, 0]), t([1, 1]), t([0.5, 0.5]), importance_N=t([0.5, 2.0])
    )  # fmt: skip
    assert loss.item() == pytest.approx(-(0.5 * 0.5 * 1.2 + 0.5 * 2 * 1.1))
    assert metrics["clip_frac"].item() == 0.5
    assert metrics["ratio_mean"].item() == pytest.approx(1.3)


def test_a_ratio_beyond_float32_leaves_the_loss_finite() -> None:
    """exp(200) is inf in float32, and inf times an advantage of 0 would be NaN."""
    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    loss, metrics = ppo_clip(
        logp, torch.tensor([-200.0, -200.0]), torch.tensor([0.0, -1.0]), torch.tensor([0.5, 0.5])
    )
    (gradient,) = torch.autograd.grad(loss, logp)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    assert all(torch.isfinite(m) for m in metrics.values())


def test_first_update_has_the_policy_gradient() -> None:
    """At ratio 1 the gradient of the loss by log-prob k is -w_k A_k, with nothing clipped."""
    logp = t([-1, -2, -3]).requires_grad_()
    loss, metrics = ppo_clip(logp, logp.detach(), t([1, -2, 0.5]), t([0.2, 0.3, 0.5]))
    (gradient,) = torch.autograd.grad(loss, logp)
    np.testing.assert_allclose(gradient.numpy(), [-0.2, 0.6, -0.25])
    assert metrics["clip_frac"].item() == 0


def test_expected_gradient_is_the_exact_policy_gradient() -> None:
    """Enumerated over pi = softmax(logits): d/dz_j of -E[A] is -pi_j (A_j - E[A])."""
    logits = t(LOGITS).requires_grad_()
    logp = logits.log_softmax(-1)
    pi, adv = logp.detach().exp(), t([1.0, -0.5, 2.0])
    loss, _ = ppo_clip(logp, logp.detach(), adv, pi)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = -pi * (adv - (pi * adv).sum())
    np.testing.assert_allclose(gradient.numpy(), expected.numpy(), atol=1e-12)


def test_gradient_off_policy_equals_exact_enumeration() -> None:
    """Tokens from old probabilities; clipped tokens drop out of the gradient by hand."""
    logits = t(LOGITS).requires_grad_()
    logp = logits.log_softmax(-1)
    pi = logp.detach().exp()
    old, adv, clip = t([0.4, 0.35, 0.25]), t([1.0, 1.0, -1.0]), 0.2
    # ratios 1.66, 0.70, 0.36: token 0 (A > 0, r > 1.2) and token 2 (A < 0, r < 0.8) are cut
    loss, metrics = ppo_clip(logp, old.log(), adv, old, clip=clip)
    (gradient,) = torch.autograd.grad(loss, logits)
    # only token 1 remains: -old_1 A_1 d r_1 = -pi_1 (e_1 - pi)
    expected = (-pi[1] * (t([0, 1, 0]) - pi)).numpy()
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-12)
    assert metrics["clip_frac"].item() == pytest.approx(0.65)


def test_fault_13_log_probs_of_weightless_tokens_change_nothing() -> None:
    logp, adv = t([-1, -2]).requires_grad_(), t([1, 1])
    weight = t([1, 0])
    plain, _ = ppo_clip(logp, t([-1.1, -2]), adv, weight)
    odd, metrics = ppo_clip(logp, t([-1.1, 1e9]), adv, weight)
    assert odd.item() == plain.item() and metrics["clip_frac"].item() == 0
    (g,) = torch.autograd.grad(odd, logp)
    assert g.tolist() == pytest.approx([-exp(0.1), 0])


def test_splitting_a_batch_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    logp, old, adv, weight = (torch.from_numpy(rng.normal(size=12)) for _ in range(4))
    whole, metrics = ppo_clip(logp, old, adv, weight)
    parts = [ppo_clip(*(x[i : i + 4] for x in (logp, old, adv, weight))) for i in (0, 4, 8)]
    assert sum(p.item() for p, _ in parts) == pytest.approx(whole.item())
    assert sum(m["clip_frac"].item() for _, m in parts) == pytest.approx(
        metrics["clip_frac"].item()
    )
