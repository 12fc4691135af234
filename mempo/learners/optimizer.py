"""AdamW whose state is float32 whatever the model computes in.

A bfloat16 weight has 8 bits of precision: an update smaller than 1/256 of it is lost. So the
weights that are optimised are float32 masters, and the model holds rounded copies of them.
"""

from __future__ import annotations

from typing import Any

import torch

from mempo.config import Learner


class MasterAdamW:
    """One optimiser step over all parameters of a model, gradients clipped by global norm."""

    def __init__(self, model: Any, settings: Learner, *, embedding_lr_factor: float = 1.0):
        self.model = model
        self.grad_clip = settings.grad_clip
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float().clone() for p in self.parameters
        ]
        shared = {id(p) for p in model.get_input_embeddings().parameters()}
        embeddings, others = [], []
        for p, master in zip(self.parameters, self.masters, strict=True):
            (embeddings if id(p) in shared else others).append(master)
        self.factors = (1.0, embedding_lr_factor)
        self.adamw = torch.optim.AdamW(
            [{"params": others}, {"params": embeddings}],
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            weight_decay=settings.weight_decay,
        )

    def step(self, lr: float) -> float:
        """Update with the gradients that the model holds and clear them; the norm before clipping.

        A gradient that is not finite raises ArithmeticError and changes nothing.
        """
        for p, master in zip(self.parameters, self.masters, strict=True):
            if master is not p and p.grad is not None:
                master.grad = p.grad.float()
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters, self.grad_clip))
        if norm != norm or norm == float("inf"):
            self.zero()
            raise ArithmeticError(f"gradient norm is {norm}: a loss of this step is not finite")
        for group, factor in zip(self.adamw.param_groups, self.factors, strict=True):
            group["lr"] = lr * factor
        self.adamw.step()
        self.publish()
        self.zero()
        return norm

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        for p, master in zip(self.parameters, self.masters, strict=True):
            if master is not p:
                p.copy_(master)

    def zero(self) -> None:
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.grad = None
            master.grad = None

    def state(self) -> dict[str, Any]:
        """All that a resume needs: Adam's moments, and the masters where they are not the model."""
        masters = [m for m, p in zip(self.masters, self.parameters, strict=True) if m is not p]
        return {"adamw": self.adamw.state_dict(), "masters": masters}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        own = [m for m, p in zip(self.masters, self.parameters, strict=True) if m is not p]
        for master, saved in zip(own, state["masters"], strict=True):
            master.copy_(saved)
        self.publish()
