"""DPO against autograd on the whole graph, and against hand-computed values."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.learners.dpo import Lived, dpo_loss, dpo_update
from mempo.policies.distribution import Sampling, logprobs_of
from mempo.policies.weights import digest
from mempo.types import Row

BETA = 0.3
PAIRS = [(0, 1), (2, 1)]
numbers = st.lists(st.floats(-50, 50), min_size=1, max_size=5)


def test_hand_computed_values() -> None:
    loss, slope, metrics = dpo_loss([2.0, -1.0], [1.0, 1.0], beta=0.5)
    expected = [log(1 + exp(-0.5)), log(1 + exp(1.0))]  # m = 1 and -2
    assert loss == pytest.approx(sum(expected) / 2)
    assert slope == pytest.approx([-0.5 / (1 + exp(0.5)) / 2, -0.5 / (1 + exp(-1.0)) / 2])
    assert metrics == {"margin": -0.5, "preferred_frac": 0.5}
    assert dpo_loss([0.0], [0.0], beta=9.0)[0] == pytest.approx(log(2))


@given(chosen=numbers, beta=st.floats(0.01, 5))
def test_loss_and_slope_are_those_of_logsigmoid(chosen: list[float], beta: float) -> None:
    m = torch.tensor(chosen, dtype=torch.float64, requires_grad=True)
    oracle = -torch.nn.functional.logsigmoid(beta * m).mean()
    [expected] = torch.autograd.grad(oracle, [m])
    loss, slope, _ = dpo_loss(chosen, np.zeros(len(chosen)), beta=beta)
    assert loss == pytest.approx(float(oracle.detach()), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(slope, expected.numpy(), rtol=1e-9, atol=1e-300)


def lived(bench: Any) -> dict[int, Lived]:
    """Three trajectories of one, two and three steps; 1 is in both pairs."""
    rows = bench.rows()
    return {0: Lived(rows[:1], -3.0), 1: Lived(rows[1:3], -20.0), 2: Lived(rows[3:6], -90.0)}


def whole(model: Any, row: Row, sampling: Sampling | None) -> torch.Tensor:
    """The log-prob of all targets of a row, by a pass over it alone."""
    ids, at = torch.tensor(row.ids), torch.tensor(row.mask).nonzero()[:, 0]
    logits = model(input_ids=ids[None]).logits[0, at - 1]
    return logprobs_of(logits, ids[at], sampling).sum()


@pytest.mark.parametrize("micro_tokens", [9, 18, 10_000])
@pytest.mark.parametrize("sampling", [None, Sampling(0.7)])
def test_the_gradient_is_that_of_the_loss_over_whole_trajectories(
    bench: Any, micro_tokens: int, sampling: Sampling | None
) -> None:
    learner = bench.learner(micro_tokens=micro_tokens)
    tries = lived(bench)
    gain = {}
    for n, t in tries.items():
        gain[n] = -t.ref_logprob + sum(whole(learner.model, row, sampling) for row in t.rows)
    margins = torch.stack([gain[w] - gain[r] for w, r in PAIRS])
    oracle = -torch.nn.functional.logsigmoid(BETA * margins).mean()
    expected = torch.autograd.grad(oracle, list(learner.model.parameters()))

    caught: list[torch.Tensor] = []

    def catch(lr: float) -> float:
        caught.extend(p.grad.clone() for p in learner.model.parameters())
        return 7.0

    learner.optimizer.step = catch
    got = dpo_update(learner, tries, PAIRS, beta=BETA, sampling=sampling)
    assert got["policy"] == pytest.approx(float(oracle.detach()), rel=1e-5)
    assert (got["grad_norm"], got["skipped"]) == (7.0, 0.0)
    scale = max(float(g.abs().max()) for g in expected)
    for a, b in zip(caught, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-4)


def test_updates_widen_the_margin(bench: Any) -> None:
    learner, tries = bench.learner(lr=1e-3), lived(bench)
    first, *_, last = (dpo_update(learner, tries, PAIRS, beta=BETA) for _ in range(5))
    assert last["policy"] < first["policy"] and last["margin"] > first["margin"]


def test_without_pairs_nothing_moves(bench: Any) -> None:
    learner = bench.learner(lr=1e-3)
    before = digest(learner.model)
    assert dpo_update(learner, {}, [], beta=BETA)["skipped"] == 1.0
    assert digest(learner.model) == before
