"""One row for many: tokens that rows share at their beginning go through the model once.

The rows of a batch are a prefix tree. It is laid out flat, as one row of segments: the tokens of
a sequence that the one before it (in the order of their ids) has not had at the same place. All
that a model does token by token then runs on these alone, and attention runs segment by segment:
over the keys of the tokens that stand before it in its sequence, wherever these lie, and causally
over its own. Positions count along the sequence. So every value is that of the sequence alone, and
gradients flow through what is shared.

A segment that continues others needs a mask, its tokens times those of its whole sequence; one that
begins a sequence needs none, sliding windows aside. So a long segment begins anew rather than share
a little (`reused`).

The question of a group, the history that a step continues, memories that are the same: all are
shared beginnings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mempo.policies.attention import asks_for_torch, grouped
from mempo.policies.attention import attend as attend_rows

NAME = "mempo_segments"  # the attention implementation, as transformers knows it
KEPT = 2**24  # elements of masks that a pass without gradients keeps; others are made in each layer


@dataclass(frozen=True)
class Segment:
    """Tokens that lie side by side and continue a path through earlier segments."""

    size: int
    path: tuple[tuple[int, int], ...]  # (segment, how many of its first tokens), from the root on

    @property
    def start(self) -> int:
        """Position of the first token in its sequence."""
        return sum(n for _, n in self.path)


@dataclass
class Layout:
    """Sequences as segments: `ids` is the flat row, T its tokens."""

    ids: list[int]  # [T]
    positions: list[int]  # [T], of each token in its sequence
    where: list[list[int]]  # of each sequence, where its tokens lie in `ids`
    segments: list[Segment]
    masks: dict[tuple, torch.Tensor] = field(default_factory=dict)  # made at need, for all layers
    kept: int = 0  # elements of them

    def mask(
        self, segment: Segment, window: int | None, groups: int, like: torch.Tensor
    ) -> torch.Tensor | None:
        """[1, 1, groups size, start + size] what is added to the scores, `groups` times over.

        None: the plain causal attention. window: a token sees that many, itself included; None:
        all.
        """
        start, size = segment.start, segment.size
        if start + size <= (window or start + size):
            window = None
            if start == 0 or size == 1:
                return None
        key = (start, size, window, groups, like.dtype, like.device)
        if key in self.masks:
            return self.masks[key]
        at = torch.arange(start + size, device=like.device)
        distance = at[start:, None] - at
        unseen = (distance < 0) | (distance >= (window or start + size))
        mask = torch.zeros_like(unseen, dtype=like.dtype).masked_fill_(unseen, float("-inf"))
        mask = mask.repeat(groups, 1)[None, None]
        # A backward pass needs all of them, so there each is one for all layers.
        if torch.is_grad_enabled() or self.kept + mask.numel() <= KEPT:
            self.masks[key] = mask
            self.kept += mask.numel()
        return mask


def lay_out(sequences: Sequence[list[int]]) -> Layout:
    """The prefix tree of token sequences, flat; equal sequences are one."""
    layout = Layout([], [], [[] for _ in sequences], [])
    last: Sequence[int] = ()
    where: list[int] = []
    path: list[tuple[int, int]] = []  # of `last`, its own segment included
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i]):
        ids = sequences[i]
        start = reused(last, ids)
        path = _cut(path, start)
        if size := len(ids) - start:
            layout.segments.append(Segment(size, tuple(path)))
            path.append((len(layout.segments) - 1, size))
            where = where[:start] + [len(layout.ids) + n for n in range(size)]
            layout.ids.extend(ids[start:])
            layout.positions.extend(range(start, len(ids)))
        layout.where[i] = where[: len(ids)]
        last = ids
    return layout


LONG = 512  # tokens of a segment, from which its mask is dear
LITTLE = 1 / 8  # of such a segment: not worth the mask


def reused(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens of `b` are not computed again after `a`: their common beginning, or none.

    None where `b` goes on for long and the beginning is little of that.
    """
    pairs = enumerate(zip(a, b, strict=False))
    n = next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
    own = len(b) - n
    return 0 if own > LONG and n < own * LITTLE else n


def _cut(path: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The first `length` tokens of a path."""
    kept = []
    for segment, n in path:
        if length <= 0:
            break
        kept.append((segment, min(n, length)))
        length -= n
    return kept


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention by torch, of each segment of `layout` alone; without one, of all.

    query, key, value: [1, heads, T, head width] in the order of `layout.ids`.
    """
    if layout is None:
        return attend_rows(module, query, key, value, attention_mask, **settings)
    sizes = [s.size for s in layout.segments]
    queries, keys, values = (t.split(sizes, dim=2) for t in (query, key, value))
    pieces: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def piece(segment: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a segment's first tokens; cut once, for the backward pass's sake."""
        if (segment, n) not in pieces:
            pieces[segment, n] = keys[segment][:, :, :n], values[segment][:, :, :n]
        return pieces[segment, n]

    groups = query.shape[1] // key.shape[1]
    outputs = []
    for i, segment in enumerate(layout.segments):
        parts = [piece(*p) for p in segment.path] + [(keys[i], values[i])]
        k, v = (torch.cat(t, dim=2) if segment.path else t[0] for t in zip(*parts, strict=True))
        mask = layout.mask(segment, settings.get("sliding_window"), groups, query)
        if mask is None:
            out, _ = sdpa_attention_forward(module, queries[i], k, v, None, **settings)
        else:
            out = grouped(queries[i], k, v, mask, settings.get("scaling"))
        outputs.append(out)
    return torch.cat(outputs, dim=1), None  # [1, T, heads, head width]


def flat_inputs(layout: Layout, device: Any) -> dict[str, Any]:
    """What a model is called with.

    The mask is one that transformers passes on as it is; without any it would make a dense one.
    """
    return {
        "input_ids": torch.tensor([layout.ids], device=device),
        "position_ids": torch.tensor([layout.positions], device=device),
        "attention_mask": torch.zeros((1, 1, 1, 1), device=device),
        "layout": layout,
    }


@torch.no_grad()
def takes_segments(model: Any) -> bool:
    """Whether `model` computes a flat layout as it computes its sequences; if so, it is set to.

    It is asked: random tokens, flat and one sequence at a time, have to come out the same, so
    that a model that mixes tokens elsewhere (recurrent or convolutional layers), or brings its own
    attention, is found out. A warning says so, and the model stays as it was.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(model.config.get_text_config().vocab_size, (24,), generator=generator)
    shared, *tails = (part.tolist() for part in draws.split([6, 6, 6, 6]))
    sequences = [shared + tails[0], shared + tails[1], shared + tails[1][:3] + tails[2]]
    layout = lay_out(sequences)
    device = next(model.parameters()).device
    try:
        if asks_for_torch(model):
            raise ValueError("its code looks at the name of the attention")
        model.set_attn_implementation(NAME)
        flat = flat_inputs(layout, device)
        hidden = model.base_model(use_cache=False, **flat).last_hidden_state[0]
        worst = 0.0
        for ids, where in zip(sequences, layout.where, strict=True):
            alone = model.base_model(
                input_ids=torch.tensor([ids], device=device), use_cache=False
            ).last_hidden_state[0]
            error = (hidden[where] - alone).float().norm(dim=-1) / alone.float().norm(dim=-1)
            worst = max(worst, float(error.max()))
        reason = f"values differ by {worst:.1e} of their size"
        good = worst < (1e-3 if model.dtype == torch.float32 else 0.1)  # bfloat16 alone: 0.01
    except Exception as error:  # whatever a model's own code raises where it knows no layout
        reason, good = f"{type(error).__name__}: {error}", False
    if not good:
        model.set_attn_implementation(before)
        warnings.warn(
            f"{type(model).__name__} does not compute shared prefixes ({reason[:200]}): every row "
            "is computed whole",
            stacklevel=3,
        )
    return good
