"""Log-probs of target tokens, from hidden states, a piece of the logits at a time.

A vocabulary is a hundred times wider than a hidden state: the logits of a micro-batch, their
log-softmax and the gradients of both would be most of its memory, and each pass over them would go
through main memory. So logits live piece by piece, and the backward pass computes them again: one
more product, of the many that a token costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from mempo.learners.loss import entropy
from mempo.learners.packing import Batch
from mempo.policies.distribution import Sampling, logprobs_of

PIECE = {"cpu": 2**23, "cuda": 2**27}  # logits at a time: a few passes stay in a CPU's cache


def read_targets(
    model: Any, batch: Batch, sampling: Sampling | None = None, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([N] log-probs of the N targets of a batch, [N] entropies in nats or None), float32.

    Each is that of the model's output one position before its target. Entropies are those of the
    plain distribution, at temperature 1.
    """
    hidden = model.base_model(use_cache=False, **batch.inputs).last_hidden_state  # [B, T, D]
    head = model.get_output_embeddings()
    read: Any = _Readout.apply(
        hidden.flatten(0, 1)[batch.before],
        head.weight,
        head.bias,
        batch.targets,
        sampling,
        with_entropy,
    )
    return read


class _Readout(torch.autograd.Function):
    """hidden [N, D], weight [V, D], bias [V] or None, targets [N] -> log-probs, entropies."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        sampling: Sampling | None,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.sampling = sampling
        ctx.set_materialize_grads(False)  # None: no loss was made of it
        logprobs, entropies = [], []
        for at in _pieces(hidden, weight):
            logits = linear(hidden[at], weight, bias).float()
            logprobs.append(logprobs_of(logits, targets[at], sampling))
            if with_entropy:
                entropies.append(entropy(logits))
        return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        # [N, V], of the logits; in the type of the product that they are.
        grad = hidden.new_empty((len(hidden), len(weight)))
        for at in _pieces(hidden, weight):
            logits = linear(hidden[at], weight, bias).float().requires_grad_()
            outputs, of = [], []
            with torch.enable_grad():
                if grads[0] is not None:
                    outputs.append(logprobs_of(logits, targets[at], ctx.sampling))
                    of.append(grads[0][at])
                if grads[1] is not None:
                    outputs.append(entropy(logits))
                    of.append(grads[1][at])
            (grad[at],) = torch.autograd.grad(outputs, logits, of)
        wanted = ctx.needs_input_grad
        return (
            grad @ weight if wanted[0] else None,
            grad.t() @ hidden if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
            *(None, None, None),
        )


def _pieces(hidden: torch.Tensor, weight: torch.Tensor) -> list[slice]:
    rows = max(1, PIECE[hidden.device.type] // len(weight))
    return [slice(at, at + rows) for at in range(0, len(hidden), rows)]
