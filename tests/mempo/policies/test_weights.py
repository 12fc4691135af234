"""Weights arrive bit by bit, tied ones once, and a foreign file is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mempo.config import Audit
from mempo.policies.tiny import tiny_model
from mempo.policies.weights import (
    Proof,
    WeightsError,
    check_arrival,
    digest,
    load_weights,
    probe_row,
    save_weights,
)


@pytest.fixture
def model() -> Any:
    return tiny_model(20, 1, width=32, heads=2)


def test_weights_survive_the_way_bit_by_bit(model: Any, tmp_path: Path) -> None:
    other = tiny_model(20, 2, width=32, heads=2)
    assert digest(other) != digest(model)
    sent = save_weights(model, tmp_path / "new" / "weights.safetensors")
    assert load_weights(other, tmp_path / "new" / "weights.safetensors") == sent == digest(model)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["weights.safetensors"]


def test_bfloat16_weights_survive(model: Any, tmp_path: Path) -> None:
    half = deepcopy(model).bfloat16()
    other = tiny_model(20, 2, width=32, heads=2).bfloat16()
    assert save_weights(half, tmp_path / "w.safetensors") == load_weights(
        other, tmp_path / "w.safetensors"
    )
    assert digest(half) != digest(model)


def test_fault_36_a_tied_head_is_stored_once_and_stays_tied(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(model, path)
    assert "lm_head.weight" not in load_file(path)
    other = tiny_model(20, 2, width=32, heads=2)
    load_weights(other, path)
    assert other.lm_head.weight.data_ptr() == other.model.embed_tokens.weight.data_ptr()
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(model(ids).logits, other(ids).logits)


def test_fault_36_the_digest_sees_one_changed_weight_and_a_stale_sampler(
    model: Any, tmp_path: Path
) -> None:
    sampler = deepcopy(model)
    before = digest(model)
    with torch.no_grad():
        model.lm_head.weight[3, 4] += 1e-2  # the planted change; the head is tied
    assert digest(model) != before
    assert digest(sampler) == before != save_weights(model, tmp_path / "w.safetensors")


def test_weights_of_another_model_are_refused(model: Any, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "w.safetensors")
    other = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="another model"):
        load_weights(other, tmp_path / "w.safetensors")


def test_weights_of_another_width_change_nothing(model: Any, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "w.safetensors")
    wider = tiny_model(20, 1, width=64, heads=2)
    before = digest(wider)
    with pytest.raises(ValueError, match="another model"):
        load_weights(wider, tmp_path / "w.safetensors")
    assert digest(wider) == before


@pytest.mark.parametrize(
    ("exact", "off", "arrives"),
    [(True, 5e-4, True), (True, 2e-3, False), (False, 0.011, True), (False, 0.12, False)],
)
def test_fault_36_rounding_is_no_fault_and_other_weights_are(
    exact: bool, off: float, arrives: bool
) -> None:
    logprobs = np.array([-20.0, -10.0, -15.0])
    proof = Proof("abc", probe_row(50), logprobs)
    found = logprobs + off if exact else logprobs * (1 + off)  # bfloat16: a share of their size
    if arrives:
        check_arrival(2, "abc", found, proof, Audit(), exact=exact)
        return
    with pytest.raises(WeightsError, match="version 2 are not in use: log-probs of a probe differ"):
        check_arrival(2, "abc", found, proof, Audit(), exact=exact)


@pytest.mark.parametrize("exact", [True, False])
def test_fault_36_a_probe_that_is_no_number_fails(exact: bool) -> None:
    proof = Proof("abc", probe_row(50), np.array([-20.0]))
    with pytest.raises(WeightsError, match="differ by inf"):
        check_arrival(2, "abc", [np.nan], proof, Audit(), exact=exact)
