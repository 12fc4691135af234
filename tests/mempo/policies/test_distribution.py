"""Temperature and truncation against hand-computed probabilities and naive sets."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.policies.distribution import Sampling, logprobs_of, truncate

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])  # probabilities .6652 .2447 .0900

distinct = st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True)


def kept(logits: torch.Tensor) -> list[int]:
    return torch.isfinite(logits[0]).nonzero()[:, 0].tolist()


def test_whole_distribution_by_hand() -> None:
    total = exp(2) + exp(1) + 1
    got = logprobs_of(LOGITS.repeat(3, 1), torch.tensor([0, 1, 2]))
    assert got.tolist() == pytest.approx([log(exp(x) / total) for x in (2, 1, 0)], abs=1e-6)


def test_temperature_divides_before_softmax() -> None:
    total = exp(2 / 0.7) + exp(1 / 0.7) + 1
    got = logprobs_of(LOGITS, torch.tensor([1]), Sampling(0.7))
    assert got.item() == pytest.approx(log(exp(1 / 0.7) / total), abs=1e-6)


def test_greedy_has_the_log_probs_of_temperature_one() -> None:
    assert torch.equal(
        logprobs_of(LOGITS, torch.tensor([1]), Sampling(0.0)),
        logprobs_of(LOGITS, torch.tensor([1])),
    )


def test_fault_15_truncation_is_in_the_log_prob() -> None:
    """Top-k of 2 leaves e^2 : e^1, so token 0 has .731 instead of .665: a factor of .910."""
    truncated = logprobs_of(LOGITS, torch.tensor([0]), Sampling(top_k=2))
    assert truncated.exp().item() == pytest.approx(exp(2) / (exp(2) + exp(1)), abs=1e-6)
    full = logprobs_of(LOGITS, torch.tensor([0]))
    assert (full - truncated).exp().item() == pytest.approx(0.910, abs=5e-4)


def test_temperature_comes_before_the_nucleus() -> None:
    # At temperature 1 token 0 alone has .665 >= .6; at temperature 3 it has .448 < .6.
    assert kept(truncate(LOGITS / 1.0, top_p=0.6)) == [0]
    assert kept(truncate(LOGITS / 3.0, top_p=0.6)) == [0, 1]
    got = logprobs_of(LOGITS, torch.tensor([0]), Sampling(3.0, top_p=0.6))
    assert got.exp().item() == pytest.approx(exp(2 / 3) / (exp(2 / 3) + exp(1 / 3)), abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.5, [0]), (0.66, [0]), (0.67, [0, 1]), (0.9, [0, 1]), (0.92, [0, 1, 2])],
)
def test_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, expected: list[int]) -> None:
    assert kept(truncate(LOGITS, top_p=top_p)) == expected


def test_a_tiny_nucleus_keeps_the_likeliest_token() -> None:
    assert kept(truncate(LOGITS, top_p=1e-6)) == [0]


@given(distinct, st.integers(1, 12), st.floats(0.05, 0.99))
def test_truncation_equals_a_naive_loop(values: list[int], top_k: int, top_p: float) -> None:
    order = sorted(range(len(values)), key=lambda i: -values[i])[:top_k]
    total = sum(exp(values[i] / 8) for i in order)
    nucleus, mass = [], 0.0
    for i in order:
        if abs(mass - top_p) < 1e-5:
            return  # decided by rounding
        if mass >= top_p:
            break
        nucleus.append(i)
        mass += exp(values[i] / 8) / total
    logits = torch.tensor([values], dtype=torch.float32) / 8
    assert kept(truncate(logits, top_k=top_k, top_p=top_p)) == sorted(nucleus)


@given(distinct, st.floats(0.2, 3.0), st.integers(0, 12), st.floats(0.05, 1.0))
def test_probabilities_of_the_truncated_set_sum_to_one(
    values: list[int], temperature: float, top_k: int, top_p: float
) -> None:
    sampling = Sampling(temperature, top_p, top_k)
    logits = torch.tensor([values], dtype=torch.float32) / 8
    inside = kept(truncate(logits / temperature, top_p=top_p, top_k=top_k))
    logps = logprobs_of(logits.repeat(len(inside), 1), torch.tensor(inside), sampling)
    assert logps.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_target_outside_the_set_keeps_a_finite_log_prob_and_a_gradient() -> None:
    """Rounding at the set's edge, or another policy than the sampled one, moves a token out."""
    logits = LOGITS.clone().requires_grad_()
    logp = logprobs_of(logits, torch.tensor([2]), Sampling(top_k=2))
    assert logp.exp().item() == pytest.approx(1 / (exp(2) + exp(1) + 1), abs=1e-6)
    logp.sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_nothing_truncates_by_default() -> None:
    assert truncate(LOGITS) is LOGITS
    assert truncate(LOGITS, top_k=3, top_p=1.0) is LOGITS


def test_what_a_memory_weight_sampled_is_not_trained_on() -> None:
    with pytest.raises(ValueError, match="for inference"):
        logprobs_of(torch.zeros(1, 3), torch.tensor([0]), Sampling(memory_weight=2.0))
