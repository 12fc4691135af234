"""Log-probs and entropies of targets against a pass over each row alone with all its logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mempo.learners import readout
from mempo.learners.loss import entropy
from mempo.learners.packing import to_batch
from mempo.learners.readout import read_targets
from mempo.learners.shared import takes_segments
from mempo.policies.distribution import Sampling, logprobs_of
from mempo.policies.tiny import tiny_model
from mempo.types import Row

VOCABULARY, PAD = 20, 2
SAMPLINGS = [None, Sampling(0.7), Sampling(1.3, top_k=5), Sampling(0.9, top_p=0.6)]


def row(ids: list[int], *targets: int) -> Row:
    return Row(ids, [i in targets for i in range(len(ids))])


ROWS = [row([3, 4, 5, 6, 7, 8], 2, 5), row([9, 10, 11], 1, 2), row([12, 13, 14, 15], 3)]


def untied(bias: bool) -> Any:
    """A head of its own, with a bias where asked."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = Qwen3ForCausalLM(config)
    model.lm_head = torch.nn.Linear(32, VOCABULARY, bias=bias)
    return model


@pytest.fixture(params=["tied", "untied", "bias"])
def model(request: pytest.FixtureRequest) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if request.param == "tied":
            made = tiny_model(VOCABULARY, 3, width=32, heads=2)
        else:
            made = untied(request.param == "bias")
        made.lm_head.weight.data.normal_(0, 0.5)  # far from uniform
    return made.eval()


@pytest.fixture(params=[1, 2, 100], ids="{} rows a piece".format)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(readout.PIECE, "cpu", request.param * VOCABULARY)
    return request.param


def naive(model: Any, sampling: Sampling | None) -> tuple[torch.Tensor, torch.Tensor]:
    logits, targets = [], []
    for r in ROWS:
        out = model(input_ids=torch.tensor([r.ids])).logits[0]
        at = [i for i, is_target in enumerate(r.mask) if is_target]
        logits += [out[i - 1] for i in at]
        targets += [r.ids[i] for i in at]
    stacked = torch.stack(logits)
    return logprobs_of(stacked, torch.tensor(targets), sampling), entropy(stacked)


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("of", ["log-probs", "entropies", "both"])
def test_values_and_gradients_are_those_of_whole_logits(
    model: Any, piece: int, sampling: Sampling | None, shared: bool, of: str
) -> None:
    batch = to_batch(ROWS, PAD, "cpu", shared=shared and takes_segments(model))
    got = read_targets(model, batch, sampling, with_entropy=True)
    expected = naive(model, sampling)
    weights = torch.tensor([[1.0, -2.0, 0.5, 3.0, 0.0], [0.3, 1.0, -1.0, 2.0, 0.7]])

    def loss(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        parts = [(logprobs * weights[0]).sum(), (entropies * weights[1]).sum()]
        return {"log-probs": parts[0], "entropies": parts[1], "both": parts[0] + parts[1]}[of]

    logprobs, entropies = got
    assert entropies is not None
    assert logprobs.dtype == entropies.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected[1], atol=1e-5, rtol=1e-5)
    ours = gradients(model, loss(logprobs, entropies))
    theirs = gradients(model, loss(*expected))
    assert len(ours) == len(theirs) > 10
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm() + 1e-7


def test_no_more_logits_than_a_piece_at_a_time(
    model: Any, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    spied = readout.logprobs_of

    def spy(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(logits))
        return spied(logits, *rest)

    monkeypatch.setattr(readout, "logprobs_of", spy)
    logprobs, entropies = read_targets(model, to_batch(ROWS, PAD, "cpu", shared=False))
    assert entropies is None
    logprobs.sum().backward()
    assert max(seen) == min(piece, 5) and sum(seen) == 2 * 5  # once each way


def test_a_frozen_head_gets_no_gradient(model: Any) -> None:
    batch = to_batch(ROWS, PAD, "cpu", shared=False)
    norm = model.model.norm.weight
    for p in model.parameters():
        p.requires_grad_(p is norm)
    (got,) = gradients(model, read_targets(model, batch)[0].sum())
    (expected,) = gradients(model, naive(model, None)[0].sum())
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_values_are_float32_of_a_bfloat16_model(model: Any) -> None:
    half = model.bfloat16()
    logprobs, _ = read_targets(half, to_batch(ROWS, PAD, "cpu", shared=False))
    assert logprobs.dtype == torch.float32
    logprobs.sum().backward()
    assert half.lm_head.weight.grad.dtype == torch.bfloat16
