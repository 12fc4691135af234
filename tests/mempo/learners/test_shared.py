"""Shared prefixes: each token once, and the values of every sequence alone."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mempo.config import Learner
from mempo.learners import shared
from mempo.learners.packing import to_batch
from mempo.learners.readout import target_logprobs
from mempo.learners.shared import Segment, flat_inputs, lay_out, takes_segments
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.lora import add_adapters
from mempo.policies.tiny import tiny_model
from mempo.types import Row

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 1,
    "pad_token_id": 2,
}  # fmt: skip

# Few different tokens, so that much is shared, at all depths.
sequences = st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=14), min_size=1, max_size=10)


def loud(model: Any) -> Any:
    """Weights so large that every token that is seen, or not, makes a difference."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3)
    return model.eval()


MODELS = {
    "tiny": tiny_model(60, 3, width=32, heads=2).eval(),
    "grouped heads": loud(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8))),
    "window": loud(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4))),
}


@pytest.fixture(scope="module", autouse=True)
def models() -> None:
    assert all(takes_segments(model) for model in MODELS.values())


def prefixes(of: list[list[int]]) -> set[tuple[int, ...]]:
    """Every prefix of every sequence: the nodes of their tree."""
    return {tuple(ids[: n + 1]) for ids in of for n in range(len(ids))}


@torch.no_grad()
def flat_values(model: Any, of: list[list[int]]) -> list[torch.Tensor]:
    """The last hidden states of each sequence, from one pass over all."""
    layout = lay_out(of)
    flat = flat_inputs(layout, torch.device("cpu"))
    hidden = model.base_model(use_cache=False, **flat).last_hidden_state[0]
    return [hidden[where] for where in layout.where]


@torch.no_grad()
def alone(model: Any, ids: list[int]) -> torch.Tensor:
    return model.base_model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]


def test_a_layout_by_hand() -> None:
    layout = lay_out([[1, 2, 3], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3, 6], [9]])
    # in the order of ids: 1 2 3 | 1 2 3 6 | 1 2 4 5 | 9
    assert layout.ids == [1, 2, 3, 6, 4, 5, 9]
    assert layout.positions == [0, 1, 2, 3, 2, 3, 0]
    assert layout.where == [[0, 1, 2], [0, 1, 4, 5], [0, 1, 2], [0, 1, 2, 3], [6]]
    assert layout.segments == [
        Segment(3, ()), Segment(1, ((0, 3),)), Segment(2, ((0, 2),)), Segment(1, ())
    ]  # fmt: skip


def test_a_long_segment_begins_anew_rather_than_share_a_little() -> None:
    """Its mask would have its tokens times all of its sequence."""
    start, long = list(range(100, 164)), list(range(1000, 1600))
    layout = lay_out([[*start, 3], [*start, *long]])
    assert [(s.size, s.path) for s in layout.segments] == [(65, ()), (664, ())]
    more = [*start, *range(200, 220)]  # 84 of 600 tokens, and more than an eighth
    layout = lay_out([[*more, 3], [*more, *long]])
    assert [(s.size, s.path) for s in layout.segments] == [(85, ()), (600, ((0, 84),))]
    layout = lay_out([[*start, 3], [*start, *long[:512]]])
    assert [(s.size, s.path) for s in layout.segments] == [(65, ()), (512, ((0, 64),))]


@given(sequences)
def test_a_layout_holds_every_prefix_once_and_every_sequence_whole(of: list[list[int]]) -> None:
    layout = lay_out(of)
    assert len(layout.ids) == len(prefixes(of))
    for ids, where in zip(of, layout.where, strict=True):
        assert [layout.ids[at] for at in where] == ids
        assert [layout.positions[at] for at in where] == list(range(len(ids)))
    assert sum(s.size for s in layout.segments) == len(layout.ids)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=40)
@given(of=sequences, long=st.sampled_from([2, 512]), kept=st.sampled_from([0, 2**24]))
def test_values_are_those_of_each_sequence_alone(
    name: str, of: list[list[int]], long: int, kept: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "LONG", long)  # segments of more tokens may begin anew
        patch.setattr(shared, "LITTLE", 1.0)
        patch.setattr(shared, "KEPT", kept)
        values = flat_values(MODELS[name], of)
    for ids, got in zip(of, values, strict=True):
        torch.testing.assert_close(got, alone(MODELS[name], ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=40)
@given(of=sequences, data=st.data())
def test_no_branch_leaks_into_another(name: str, of: list[list[int]], data: st.DataObject) -> None:
    """Other tokens in one sequence, from any place on, change the values of no other."""
    before = flat_values(MODELS[name], of)
    changed = data.draw(st.integers(0, len(of) - 1))
    kept = data.draw(st.integers(0, len(of[changed]) - 1))
    tail = data.draw(st.lists(st.integers(3, 50), min_size=1, max_size=20))
    other = [*of[:changed], of[changed][:kept] + tail, *of[changed + 1 :]]
    for i, after in enumerate(flat_values(MODELS[name], other)):
        if i != changed:
            torch.testing.assert_close(after, before[i], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(  # and what stands before the change is as it was
        flat_values(MODELS[name], other)[changed][:kept],
        before[changed][:kept],
        atol=1e-4,
        rtol=1e-4,
    )


def gradients(model: Any, rows: list[Row], *, shared: bool) -> list[torch.Tensor]:
    model.zero_grad()
    target_logprobs(model, to_batch(rows, 2, "cpu", shared=shared))[0].sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_flow_through_what_is_shared(name: str) -> None:
    head = [7, 8, 9, 10, 11, 12]
    tails = [[20, 21, 22], [20, 21, 23, 24], [30], [20, 21, 22], [31, 32, 33, 34, 35]]
    rows = [Row(head + t, [False] * len(head) + [True] * len(t)) for t in tails]
    rows.append(Row(head + tails[1] + [40, 41], [False] * 10 + [True] * 2))  # a later step
    got = gradients(MODELS[name], rows, shared=True)
    expected = gradients(MODELS[name], rows, shared=False)
    assert len(got) == len(expected) > 10
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


def test_adapters_and_bfloat16_take_segments() -> None:
    assert takes_segments(add_adapters(tiny_model(60, 3, width=32, heads=2), 4, seed=0))
    assert takes_segments(deepcopy(MODELS["grouped heads"]).bfloat16())


def test_a_model_that_takes_segments_is_otherwise_as_before() -> None:
    model, plain = MODELS["grouped heads"], deepcopy(MODELS["grouped heads"])
    plain.set_attn_implementation("sdpa")
    ids = torch.tensor([[2, 2, 5, 6, 7], [3, 4, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])  # padded on the left
    with torch.no_grad():
        got = model(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(got, plain(input_ids=ids, attention_mask=mask).logits)
    assert model.config.to_dict() == plain.config.to_dict()  # what a checkpoint says


OTHERS = {
    "convolutional": lambda: Lfm2ForCausalLM(
        Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])
    ),
    "an attention of its own": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=4)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_ignores_the_layout_is_found_out_and_computes_whole_rows(
    name: str, codec: Codec
) -> None:
    model = loud(OTHERS[name]())
    before = model.config._attn_implementation
    with pytest.warns(UserWarning, match=rf"{type(model).__name__} does not compute shared"):
        learner = TorchLearner(model, codec, Learner())
    assert model.config._attn_implementation == before
    rows = [Row([5, 6, 7, 8, n], [False] * 4 + [True]) for n in (9, 10, 11)]
    got = learner.logprobs(rows)
    assert learner.tokens == 15
    for row, values in zip(rows, got, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.ids])).logits[0, -2]
        assert values[0] == pytest.approx(float(logits.log_softmax(-1)[row.ids[-1]]), abs=1e-4)
