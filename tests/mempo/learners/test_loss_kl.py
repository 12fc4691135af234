"""KL estimators and entropy against exact enumeration of a softmax over three tokens."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

from mempo.learners.loss import entropy, kl_penalty

LOGITS = [2.0, 1.0, 0.0]
REF = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def t(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def expected_gradient(estimator: str) -> np.ndarray:
    """E over y ~ pi of the gradient of the estimator at y, enumerated: weights pi, detached."""
    logits = t(LOGITS).requires_grad_()
    logp = logits.log_softmax(-1)
    loss, _ = kl_penalty(logp, REF.log(), logp.detach().exp(), estimator=estimator)
    return torch.autograd.grad(loss, logits)[0].numpy()


def exact_gradient(forward: bool) -> np.ndarray:
    """Gradient of KL(pi || ref) (forward) or KL(ref || pi), all of it differentiated."""
    logits = t(LOGITS).requires_grad_()
    logp = logits.log_softmax(-1)
    kl = (logp.exp() * (logp - REF.log())).sum() if forward else (REF * (REF.log() - logp)).sum()
    return torch.autograd.grad(kl, logits)[0].numpy()


def test_fault_30_expected_gradients_of_the_kl_estimators() -> None:
    np.testing.assert_allclose(expected_gradient("k2"), exact_gradient(True), atol=1e-12)
    np.testing.assert_allclose(expected_gradient("k2"), [0.403, -0.196, -0.208], atol=1e-3)
    np.testing.assert_allclose(expected_gradient("k3"), exact_gradient(False), atol=1e-12)
    np.testing.assert_allclose(expected_gradient("k3"), [0.465, -0.055, -0.410], atol=1e-3)


def test_fault_30_k1_has_no_expected_gradient() -> None:
    """E[d log pi / d logits] = 0: why it is refused as a loss."""
    logits = t(LOGITS).requires_grad_()
    logp = logits.log_softmax(-1)
    loss = (logp.detach().exp() * (logp - REF.log())).sum()
    np.testing.assert_allclose(torch.autograd.grad(loss, logits)[0].numpy(), [0, 0, 0], atol=1e-12)
    with pytest.raises(ValueError, match=r"loss\.kl_estimator: k1 .* gradient of zero; use k2"):
        kl_penalty(t([0]), t([0]), t([1]), estimator="k1")
    with pytest.raises(ValueError, match=r"loss\.kl_estimator: unknown value 'k4'"):
        kl_penalty(t([0]), t([0]), t([1]), estimator="k4")


def test_kl_values_by_hand() -> None:
    logp, ref, weight = t([log(0.5)]), t([log(0.25)]), t([2.0])
    k2, metrics = kl_penalty(logp, ref, weight, estimator="k2")
    assert k2.item() == metrics["kl"].item() == pytest.approx(log(2) ** 2)
    k3, metrics = kl_penalty(logp, ref, weight, estimator="k3")
    # exp(-log 2) - 1 + log 2 = log 2 - 1/2
    assert k3.item() == metrics["kl"].item() == pytest.approx(2 * log(2) - 1)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_to_itself_is_zero_with_zero_gradient(estimator: str) -> None:
    logp = t([-1, -2]).requires_grad_()
    kl, _ = kl_penalty(logp, logp.detach(), t([0.5, 0.5]), estimator=estimator)
    assert kl.item() == 0
    assert torch.autograd.grad(kl, logp)[0].tolist() == [0, 0]


# --- entropy


def test_entropy_by_hand() -> None:
    got = entropy(torch.tensor([[0.0, 0.0, 0.0, 0.0], [log(3), 0.0, -80.0, -80.0]]))
    expected = [log(4), -(0.75 * log(0.75) + 0.25 * log(0.25))]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)
