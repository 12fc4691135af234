"""Rows to tensors: the one place that knows the layouts of a training batch.

Shared (`mempo.learners.shared`): what rows have in common at their beginning stands there once.
Padded, for models whose attention does not take that: rows sorted by length and padded on the
right. Under a causal mask no token sees padding to its right, so no attention mask is needed
and padding is decided by length alone, whatever id it carries. In both, micro-batches have a
bounded number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from mempo.learners.shared import flat_inputs, lay_out, reused
from mempo.types import Row


def sampled_row(prompt_ids: Sequence[int], output_ids: Sequence[int], sampled: int) -> Row:
    """A step as a row: prompt masked out, the first `sampled` output tokens are targets.

    What the harness appended after them has no log-prob and is never a target.
    """
    ids = [*prompt_ids, *output_ids]
    n = len(prompt_ids)
    return Row(ids, [n <= i < n + sampled for i in range(len(ids))])


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together."""

    rows: list[int]  # indices
    tokens: int  # that go through it, padding excluded


def micro_batches(
    rows: Sequence[Row], micro_tokens: int, *, shared: bool, graph: bool = True
) -> list[MicroBatch]:
    """Batches of at most `micro_tokens` tokens, padding included.

    A row longer than the budget is a batch of its own. Rows without a target are left out.

    graph: there will be a backward pass. Without one little is kept of each token, so a shared
    batch may have twice the tokens of its first row: else a history longer than the budget would
    begin again for each of its steps, and their cost grow with the square of their number.
    """
    useful = [i for i, row in enumerate(rows) if row.targets]
    if shared:
        return _shared_batches(rows, useful, micro_tokens, 0 if graph else 2)
    return _padded_batches(rows, useful, micro_tokens)


def _shared_batches(
    rows: Sequence[Row], useful: list[int], micro_tokens: int, firsts: int
) -> list[MicroBatch]:
    """In the order of the ids; a batch that is at least half full ends where least is shared.

    Least of what it has by then, that is: it is what the next batch computes again.

    It may have `firsts` times the tokens of its first row, and at most `micro_tokens` targets: rows
    that are the same are no tokens more, but each has a gradient of its own logits.

    What rows share is computed again where a batch ends inside it, so questions are kept together,
    and then rollouts.
    """
    tokens = {i: needed(rows[i]) for i in useful}
    order = sorted(useful, key=tokens.__getitem__)
    ids = [tokens[i] for i in order]
    again = [0, *(reused(a, b) for a, b in pairwise(ids))]  # of row n, what n - 1 has too
    batches, start = [], 0
    while start < len(order):
        held, stop = [len(ids[start])], start + 1  # tokens of the batch up to each of its rows
        most = max(micro_tokens, firsts * len(ids[start]))
        targets = rows[order[start]].targets
        while stop < len(order):
            new = len(ids[stop]) - again[stop]
            targets += rows[order[stop]].targets
            if targets > micro_tokens:
                break
            if held[-1] + new > most:
                late = [m for m in range(stop, start, -1) if 2 * held[m - 1 - start] >= most]
                stop = min(late, key=lambda m: again[m] / held[m - 1 - start], default=stop)
                break
            held.append(held[-1] + new)
            stop += 1
        batches.append(MicroBatch(order[start:stop], held[stop - 1 - start]))
        start = stop
    return batches


def _padded_batches(rows: Sequence[Row], useful: list[int], micro_tokens: int) -> list[MicroBatch]:
    """Longest first."""
    batches: list[list[int]] = []
    for i in sorted(useful, key=lambda i: -len(rows[i].ids)):
        if batches and len(rows[batches[-1][0]].ids) * (len(batches[-1]) + 1) <= micro_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [MicroBatch(batch, sum(len(rows[i].ids) for i in batch)) for batch in batches]


def needed(row: Row) -> list[int]:
    """The tokens before the last target: none is predicted from what comes after them."""
    return row.ids[: max(i for i, is_target in enumerate(row.mask) if is_target)]


@dataclass(frozen=True)
class Batch:
    """Rows as tensors. N: all targets of all rows, row after row."""

    inputs: dict[str, Any]  # what the model is called with
    before: torch.Tensor  # [N] where, in its flattened output, each target is predicted
    targets: torch.Tensor  # [N] ids


def to_batch(rows: Sequence[Row], pad_id: int, device: Any, *, shared: bool) -> Batch:
    """Lay out rows, each with a target at least."""
    places = [[i for i, is_target in enumerate(row.mask) if is_target] for row in rows]
    targets = [row.ids[i] for row, at in zip(rows, places, strict=True) for i in at]
    if shared:
        layout = lay_out([needed(row) for row in rows])
        before = [w[i - 1] for w, at in zip(layout.where, places, strict=True) for i in at]
        inputs = flat_inputs(layout, device)
    else:
        width = max(len(row.ids) for row in rows)
        before = [n * width + i - 1 for n, at in enumerate(places) for i in at]
        ids = [row.ids + [pad_id] * (width - len(row.ids)) for row in rows]
        inputs = {"input_ids": torch.tensor(ids, device=device)}
    return Batch(inputs, torch.tensor(before, device=device), torch.tensor(targets, device=device))
