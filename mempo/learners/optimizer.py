"""AdamW whose state is float32 whatever the model computes in.

A bfloat16 weight has 8 bits of precision: an update smaller than 1/256 of it is lost. So the
weights that are optimised are float32 masters, and the model holds rounded copies of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mempo.config import Learner
from mempo.policies.lora import is_adapter

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def parameter_groups(
    model: Any, parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor] | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(others, embeddings): `values` (default: the parameters) by what their parameters are."""
    shared = {id(p) for p in model.get_input_embeddings().parameters()}
    groups: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for p, value in zip(parameters, values or parameters, strict=True):
        groups[id(p) in shared].append(value)
    return groups


class MasterAdamW:
    """One optimiser step over all parameters of a model, gradients clipped by global norm."""

    def __init__(self, model: Any, settings: Learner, *, embedding_lr_factor: float = 1.0):
        self.model = model
        self.grad_clip = settings.grad_clip
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float().clone() for p in self.parameters
        ]
        others, embeddings = parameter_groups(model, self.parameters, self.masters)
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

    def save(self, file: Path) -> None:
        """All that a resume needs, as safetensors: Adam's moments, masters that are no parameters.

        Tensors are named `<parameter>.<exp_avg | exp_avg_sq | step | master>`; an adapter (LoRA)
        always has a master, since a model folder holds it only merged.
        """
        tensors: dict[str, torch.Tensor] = {}
        for name, p, master in zip(self.names, self.parameters, self.masters, strict=True):
            for key, value in self.adamw.state.get(master, {}).items():
                tensors[f"{name}.{key}"] = value
            if master is not p:
                tensors[f"{name}.master"] = master
            elif is_adapter(name):  # which the model's own file does not hold
                tensors[f"{name}.master"] = p
        save_file({name: t.contiguous() for name, t in tensors.items()}, file)

    @torch.no_grad()
    def load(self, file: Path) -> None:
        """Take over what `save` wrote.

        Raises:
            ValueError: it was written for another model.
        """
        tensors = load_file(file)
        for name, p, master in zip(self.names, self.parameters, self.masters, strict=True):
            of = {key: tensors.pop(f"{name}.{key}", None) for key in (*MOMENTS, "master")}
            if any(t is not None and t.ndim and t.shape != p.shape for t in of.values()):
                raise ValueError(f"{file} was written for another model: {name} differs in shape")
            kept = of.pop("master")
            if (kept is None) != (master is p and not is_adapter(name)):
                raise ValueError(f"{file} was written in another policy.dtype: see {name}")
            if kept is not None:
                master.copy_(kept)
            moments = {key: value for key, value in of.items() if value is not None}
            if moments:
                place = {k: v if k == "step" else v.to(p.device) for k, v in moments.items()}
                self.adamw.state[master] = place
        if tensors:
            raise ValueError(f"{file} was written for another model: it has {min(tensors)}")
        self.publish()
