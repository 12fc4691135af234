"""Log-probs of target tokens, from hidden states, a chunk of the logits at a time.

A vocabulary is a hundred times wider than a hidden state: the logits of a micro-batch, their
log-softmax and the gradients of both would be most of its memory, and each pass over them would go
through main memory. So logits live chunk by chunk, and the backward pass computes them again: one
more product, of the many that a token costs. Only their gradient is kept whole, in the model's type
and where the head is trained: its gradient is then one product, and no sum that bfloat16 rounds at
each chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mempo.learners.loss import entropy
from mempo.learners.packing import Batch
from mempo.policies.distribution import Sampling, logprobs_of

CHUNK, CHUNK_GPU = 2**23, 2**27  # logits at a time; on a CPU a few passes stay in its cache


def target_logprobs(
    model: Any, batch: Batch, sampling: Sampling | None = None, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([N] log-probs of the N targets of a batch, [N] entropies in nats or None), float32.

    Each is that of the model's output one position before its target. Entropies are those of the
    plain distribution, at temperature 1.
    """
    head = model.get_output_embeddings()
    hidden = hidden_states(model, batch)
    read: Any = Readout.apply(hidden, head.weight, head.bias, batch.targets, sampling, with_entropy)
    return read


def hidden_states(model: Any, batch: Batch) -> torch.Tensor:
    """[N, D] that predict the targets of a batch."""
    hidden = model.base_model(use_cache=False, **batch.inputs).last_hidden_state  # [B, T, D]
    return hidden.flatten(0, 1)[batch.before]


def check_supported(model: Any) -> None:
    """Refuse models whose logits are more than a linear head of the last hidden state."""
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ValueError(
                f"policy.model: {type(model).__name__} rescales its logits ({name}), which the "
                "learner does not reproduce; use a model without it"
            )
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise ValueError(
            f"policy.model: the head of {type(model).__name__} is a {type(head).__name__}, which "
            "the learner does not reproduce; use a model with a linear one"
        )


class Readout(torch.autograd.Function):
    """`target_logprobs` of hidden states [N, D] under a head [V, D] with a bias [V] or None."""

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
        for at in _chunks(hidden, weight):
            logits = linear(hidden[at], weight, bias).float()
            logprobs.append(logprobs_of(logits, targets[at], sampling))
            if with_entropy:
                entropies.append(entropy(logits))
        return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        _, of_weight, of_bias, *_ = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden)
        of_logits = None  # [N, V]
        if of_weight or of_bias:
            of_logits = hidden.new_empty((len(hidden), len(weight)))
        for at in _chunks(hidden, weight):
            logits = linear(hidden[at], weight, bias).float().requires_grad_()
            outputs, of = [], []
            with torch.enable_grad():
                if grads[0] is not None:
                    outputs.append(logprobs_of(logits, targets[at], ctx.sampling))
                    of.append(grads[0][at])
                if grads[1] is not None:
                    outputs.append(entropy(logits))
                    of.append(grads[1][at])
            (grad,) = torch.autograd.grad(outputs, logits, of)
            grad = grad.to(weight.dtype)  # that of the product that the logits are
            of_hidden[at] = grad @ weight
            if of_logits is not None:
                of_logits[at] = grad
        return (
            of_hidden,
            of_logits.t() @ hidden if of_logits is not None and of_weight else None,
            of_logits.sum(0) if of_logits is not None and of_bias else None,
            *(None, None, None),
        )


def _chunks(hidden: torch.Tensor, weight: torch.Tensor) -> list[slice]:
    logits = CHUNK if hidden.device.type == "cpu" else CHUNK_GPU
    rows = max(1, logits // len(weight))
    return [slice(at, at + rows) for at in range(0, len(hidden), rows)]
