"""Log-probs and entropies of targets against a pass over each row alone with all its logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mempo.learners import readout
from mempo.learners.loss import entropy
from mempo.learners.packing import to_batch
from mempo.learners.readout import Readout, check_supported, target_logprobs
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


@pytest.fixture(params=[1, 2, 100], ids="{} rows a chunk".format)
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(readout, "CHUNK", request.param * VOCABULARY)
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
    model: Any, chunk: int, sampling: Sampling | None, shared: bool, of: str
) -> None:
    batch = to_batch(ROWS, PAD, "cpu", shared=shared and takes_segments(model))
    got = target_logprobs(model, batch, sampling, with_entropy=True)
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


def test_no_more_logits_than_a_chunk_at_a_time(
    model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    spied = readout.logprobs_of

    def spy(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(logits))
        return spied(logits, *rest)

    monkeypatch.setattr(readout, "logprobs_of", spy)
    logprobs, entropies = target_logprobs(model, to_batch(ROWS, PAD, "cpu", shared=False))
    assert entropies is None
    logprobs.sum().backward()
    assert max(seen) == min(chunk, 5) and sum(seen) == 2 * 5  # once each way


def test_a_frozen_head_costs_no_gradient_of_the_logits(
    model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = to_batch(ROWS, PAD, "cpu", shared=False)
    norm = model.model.norm.weight
    for p in model.parameters():
        p.requires_grad_(p is norm)
    (expected,) = gradients(model, naive(model, None)[0].sum())
    made: list[tuple[int, ...]] = []
    new_empty = torch.Tensor.new_empty

    def spy(self: torch.Tensor, size: Any, **options: Any) -> torch.Tensor:
        made.append(tuple(size))
        return new_empty(self, size, **options)

    monkeypatch.setattr(torch.Tensor, "new_empty", spy)
    (got,) = gradients(model, target_logprobs(model, batch)[0].sum())
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert made == []
    norm.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)  # and it is made where the head is trained
    target_logprobs(model, batch)[0].sum().backward()
    assert made == [(5, VOCABULARY)]


def test_of_a_bfloat16_model_values_and_gradients_are_those_of_autograd(chunk: int) -> None:
    """Log-softmax in float32, products in bfloat16, and the head's gradient one product."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 32, generator=generator).bfloat16()
    weight = torch.randn(VOCABULARY, 32, generator=generator).bfloat16()
    targets = torch.randint(VOCABULARY, (40,), generator=generator)
    scales = torch.randn(40, generator=generator)
    found = []
    for ours in (True, False):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        if ours:
            read: Any = Readout.apply(*leaves, None, targets, None, False)
            logprobs, _ = read
        else:
            logprobs = logprobs_of(torch.nn.functional.linear(*leaves).float(), targets)
        assert logprobs.dtype == torch.float32
        found.append([logprobs.detach(), *torch.autograd.grad((logprobs * scales).sum(), leaves)])
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).float().norm() <= 1e-3 * b.float().norm()


@pytest.mark.parametrize(
    ("name", "value"),
    [("final_logit_softcapping", 30.0), ("logit_scale", 0.0625), ("logits_scaling", 8.0)],
)
def test_a_model_that_rescales_its_logits_is_refused(model: Any, name: str, value: float) -> None:
    setattr(model.config, name, value)
    with pytest.raises(ValueError, match=rf"policy\.model.*{name}"):
        check_supported(model)


def test_a_head_that_is_more_than_linear_is_refused(model: Any) -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    model.lm_head = Scaled(32, VOCABULARY)
    with pytest.raises(ValueError, match=r"policy\.model: the head of .* is a Scaled"):
        check_supported(model)


def test_an_ordinary_model_is_supported(model: Any) -> None:
    check_supported(model)
    model.config.logit_scale = 1.0
    check_supported(model)
