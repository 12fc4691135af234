"""Rows to tensors: every target once, within budget, and the same numbers however they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.learners.packing import (
    MicroBatch,
    micro_batches,
    needed,
    sampled_row,
    to_batch,
)
from mempo.learners.readout import target_logprobs
from mempo.learners.shared import lay_out
from mempo.policies.tiny import tiny_model
from mempo.types import Row

PAD = 2


def row(ids: list[int], *targets: int) -> Row:
    return Row(ids, [i in targets for i in range(len(ids))])


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    made = []
    for _ in range(draw(st.integers(0, 12))):
        length = draw(st.integers(2, 20))
        mask = draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))
        made.append(Row(list(range(3, 3 + length)), [False, *mask]))
    return made


@st.composite
def family(draw: st.DrawFn) -> list[Row]:
    """Rows of few different tokens, so that they share a lot."""
    made = []
    for _ in range(draw(st.integers(0, 12))):
        ids = draw(st.lists(st.integers(3, 4), min_size=2, max_size=12))
        mask = draw(st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1))
        made.append(Row(ids, [False, *mask]))
    return made


@given(rows(), st.integers(1, 80))
def test_padded_batches_hold_every_row_with_targets_once_within_budget(
    made: list[Row], budget: int
) -> None:
    batches = [batch.rows for batch in micro_batches(made, budget, shared=False)]
    together = [i for batch in batches for i in batch]
    assert sorted(together) == [i for i, r in enumerate(made) if r.targets]
    lengths = [len(made[i].ids) for i in together]
    assert lengths == sorted(lengths, reverse=True)
    for batch in batches:
        padded = max(len(made[i].ids) for i in batch) * len(batch)
        assert padded <= budget or len(batch) == 1


@given(family(), st.integers(1, 80))
def test_shared_batches_hold_every_row_with_targets_once_within_budget(
    made: list[Row], budget: int
) -> None:
    batches = micro_batches(made, budget, shared=True)
    together = [i for batch in batches for i in batch.rows]
    assert sorted(together) == [i for i, r in enumerate(made) if r.targets]
    for batch in batches:
        through = lay_out([needed(made[i]) for i in batch.rows]).ids
        assert batch.tokens == len(through)
        logits = sum(made[i].targets for i in batch.rows)
        assert max(batch.tokens, logits) <= budget or len(batch.rows) == 1


def test_padded_batches_by_hand() -> None:
    made = [row([3] * n, 1) for n in (2, 5, 4, 3)]

    def batches(budget: int) -> list[list[int]]:
        return [batch.rows for batch in micro_batches(made, budget, shared=False)]

    # longest first: 5 + 4 padded to 2 x 5 = 10; 3 + 2 padded to 2 x 3 = 6
    assert batches(10) == [[1, 2], [3, 0]]
    assert batches(20) == [[1, 2, 3, 0]]
    assert batches(1) == [[1], [2], [3], [0]]
    assert micro_batches([], 10, shared=False) == micro_batches([], 10, shared=True) == []


def test_shared_batches_end_where_least_is_shared() -> None:
    """Two questions, 3 3 3 3 and 4 4 4, each with two answers of two tokens."""
    made = [row([*q, a, 9], len(q) + 1) for a in (5, 6) for q in ([3] * 4, [4] * 3)]
    # without the last target: 3 3 3 3 5 | 6 and 4 4 4 5 | 6, 6 + 5 tokens
    assert micro_batches(made, 11, shared=True) == [MicroBatch([0, 2, 1, 3], 11)]
    # of 10 tokens the first question and an answer of the second would fit in
    assert micro_batches(made, 10, shared=True) == [MicroBatch([0, 2], 6), MicroBatch([1, 3], 5)]
    assert micro_batches(made, 5, shared=True) == [
        MicroBatch([0], 5), MicroBatch([2], 5), MicroBatch([1, 3], 5)
    ]  # fmt: skip


def test_equal_rows_share_their_tokens_and_not_their_logits() -> None:
    """16 rows of 6 tokens, 4 of them targets, are no more than 6 tokens, and 64 logits."""
    rows = [Row(list(range(6)), [False, False, True, True, True, True]) for _ in range(16)]
    found = micro_batches(rows, 20, shared=True)
    assert [len(batch.rows) for batch in found] == [5, 5, 5, 1]
    assert sorted(i for batch in found for i in batch.rows) == list(range(16))


def history(steps: int, tokens: int) -> list[Row]:
    """An answer of two tokens after each step of a history that grows by `tokens` a step."""
    ids = [7 + n for n in range(steps * tokens)]
    return [row([*ids[: t * tokens], 5, 6], t * tokens + 1) for t in range(1, steps + 1)]


def through(rows: list[Row], budget: int) -> int:
    return sum(batch.tokens for batch in micro_batches(rows, budget, shared=True, graph=False))


def test_a_history_longer_than_the_budget_is_not_begun_again_at_each_step() -> None:
    """Twice the steps are about twice the tokens, and never more than each token three times."""
    once = 64 * 10 + 64  # all tokens, and one of each answer before its target
    assert through(history(64, 10), 10_000) == once
    assert through(history(64, 10), 40) <= 3 * once
    assert through(history(128, 10), 40) <= 2.5 * through(history(64, 10), 40)
    # By hand, budget 20: step 1 has 11 tokens, so step 2 goes with it (22); step 3 begins again
    # with 31, so 4 and 5 go with it (53, of at most 62); step 6 with 61, and 7.
    assert through(history(7, 10), 20) == (11 + 11) + (31 + 22) + (61 + 11)


@given(family(), st.integers(1, 80), st.sampled_from([2, 512]))
def test_without_a_graph_a_batch_is_bounded_by_its_first_row(
    made: list[Row], budget: int, long: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mempo.learners.shared.LONG", long)  # segments of more may begin anew
        for batch in micro_batches(made, budget, shared=True, graph=False):
            ids = sorted(needed(made[i]) for i in batch.rows)
            assert batch.tokens == len(lay_out(ids).ids)
            assert batch.tokens <= max(budget, 2 * len(ids[0])) or len(ids) == 1


def test_nothing_is_computed_after_the_last_target() -> None:
    assert needed(row([3, 4, 5, 6, 7], 1, 3)) == [3, 4, 5]


def test_a_sampled_row_masks_the_prompt_and_trains_all_samples() -> None:
    assert sampled_row([5, 6], [7, 8, 9], 3) == row([5, 6, 7, 8, 9], 2, 3, 4)


def test_fault_08_what_the_harness_appended_is_no_target() -> None:
    appended = sampled_row([5, 6], [7, 8, 9], 2)
    assert appended == row([5, 6, 7, 8, 9], 2, 3)
    assert appended.targets == 2


def test_fault_06_ids_and_mask_have_equal_lengths() -> None:
    for sampled in range(4):
        made = sampled_row([5, 6], [7, 8, 9], sampled)
        assert len(made.ids) == len(made.mask) == 5
        assert made.targets == sampled


@pytest.fixture(scope="module")
def model() -> Any:
    made = tiny_model(20, 3, width=32, heads=2)
    with torch.no_grad():
        made.model.norm.weight.fill_(1.0)
    return made.eval()


@torch.no_grad()
def test_fault_07_padding_is_decided_by_length(model: Any) -> None:
    """A pad id that is also a real token: ids [5, 6, 0] and a longer row beside it."""
    short = row([5, 6, 0], 1, 2)  # the end token (id 0) is sampled and trained
    long = row([7, 8, 9, 10, 11], 4)
    alone = to_batch([short], 0, "cpu", shared=False)
    together = to_batch([long, short], 0, "cpu", shared=False)
    assert together.targets.tolist() == [11, 6, 0]
    values, _ = target_logprobs(model, together)
    torch.testing.assert_close(values[1:], target_logprobs(model, alone)[0], atol=1e-5, rtol=0)
    other = to_batch([long, short], 13, "cpu", shared=False)
    assert torch.equal(target_logprobs(model, other)[0], values)  # the padding's id plays no part


@torch.no_grad()
def test_fault_14_left_padded_right_padded_and_packed_rows_agree(model: Any) -> None:
    sequences = [[3, 4, 5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16, 17]]
    batch = [row(ids, *range(1, len(ids))) for ids in sequences]
    right = to_batch(batch, PAD, "cpu", shared=False)  # padded on the right
    ours = target_logprobs(model, right)[0].numpy()

    naive = []  # logp[i] scores token i: softmax of the output at i - 1, row by row
    for ids in sequences:
        logp = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        naive += [logp[i - 1, ids[i]].item() for i in range(1, len(ids))]
    np.testing.assert_allclose(ours, naive, atol=1e-4)

    left = []  # padded on the left under an attention mask, as the sampler does
    width = max(map(len, sequences))
    for ids in sequences:
        gap = width - len(ids)
        mask = torch.tensor([[0] * gap + [1] * len(ids)])
        logits = model(
            input_ids=torch.tensor([[PAD] * gap + ids]),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        ).logits[0]
        logp = logits[gap:].log_softmax(-1)
        left += [logp[i - 1, ids[i]].item() for i in range(1, len(ids))]
    np.testing.assert_allclose(ours, left, atol=1e-4)

    joined = [i for ids in sequences for i in ids]  # one packed row under a block mask
    owner = torch.tensor([n for n, ids in enumerate(sequences) for _ in ids])
    causal = torch.tril(torch.ones(len(joined), len(joined), dtype=torch.bool))
    block = (causal & (owner[:, None] == owner[None, :]))[None, None]
    logits = model(
        input_ids=torch.tensor([joined]),
        attention_mask=torch.zeros(block.shape).masked_fill(~block, torch.finfo(torch.float).min),
        position_ids=torch.tensor([[i for ids in sequences for i in range(len(ids))]]),
    ).logits[0]
    packed, at = [], 0
    for ids in sequences:
        logp = logits[at : at + len(ids)].log_softmax(-1)
        packed += [logp[i - 1, ids[i]].item() for i in range(1, len(ids))]
        at += len(ids)
    np.testing.assert_allclose(ours, packed, atol=1e-4)
