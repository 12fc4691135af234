"""Sequences to tensors and back: the one place that knows the layout of a training batch.

Rows are sorted by length, cut into micro-batches of a bounded number of tokens and padded on
the right. Under a causal mask no token sees padding to its right, so no attention mask is
needed and padding is decided by length alone, whatever id it carries. Logits are computed at the
positions that are asked for and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mempo.types import Row


def sampled_row(prompt_ids: Sequence[int], output_ids: Sequence[int], sampled: int) -> Row:
    """A step as a row: prompt masked out, the first `sampled` output tokens are targets.

    What the harness appended after them has no log-prob and is never a target.
    """
    ids = [*prompt_ids, *output_ids]
    n = len(prompt_ids)
    return Row(ids, [n <= i < n + sampled for i in range(len(ids))])


def micro_batches(rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most `micro_tokens` padded tokens.

    A row longer than the budget is a batch of its own. Rows without a target are left out.
    """
    order = sorted(
        (i for i, row in enumerate(rows) if row.targets), key=lambda i: -len(rows[i].ids)
    )
    batch: list[int] = []
    for i in order:
        if batch and len(rows[batch[0]].ids) * (len(batch) + 1) > micro_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def target_logits(
    model: Any, rows: Sequence[Row], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that predict each target of `rows`, and the targets themselves.

    Returns ([N, V] in float32, [N] ids), N = all targets of all rows, row after row. Logit n is
    the model's output one position before target n.
    """
    ids, mask = row_tensors(rows, pad_id)
    device = next(model.parameters()).device
    ids, mask = ids.to(device), mask.to(device)
    return logits_before(model, ids, mask), ids[:, 1:][mask[:, 1:]]


def row_tensors(rows: Sequence[Row], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, whether an id is a target), both [rows, longest], padded on the right."""
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        mask[i, : len(row.ids)] = torch.tensor(row.mask)
    return ids, mask


def logits_before(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[N, V] float32 logits one position before each of the N targets that `mask` marks."""
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, D]
    return model.get_output_embeddings()(hidden[:, :-1][mask[:, 1:]]).float()


def check_supported(model: Any) -> None:
    """Refuse models whose logits are more than the output embedding of the last hidden state."""
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ValueError(
                f"policy.model: {type(model).__name__} rescales its logits ({name}), which the "
                "learner does not reproduce; use a model without it"
            )
