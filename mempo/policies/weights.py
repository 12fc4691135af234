"""Weights on their way from the learner to a sampler, and the proof that they arrived."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def save_weights(model: Any, path: Path) -> str:
    """Write the parameters (tied ones once) as safetensors; their digest."""
    tensors = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    save_file(tensors, aside)
    aside.rename(path)
    return digest(model)


@torch.no_grad()
def load_weights(model: Any, path: Path) -> str:
    """Copy the parameters in place, tied ones once; the digest of what the model holds now."""
    tensors = load_file(path)
    parameters = dict(model.named_parameters())
    here, there = ({n: t.shape for n, t in d.items()} for d in (parameters, tensors))
    if here != there:
        odd = sorted({n for n, _ in here.items() ^ there.items()})[:3]
        raise ValueError(f"weights {path} are of another model: {', '.join(odd)} differ")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    return digest(model)


def digest(model: Any) -> str:
    """sha256 over names and bytes of all parameters."""
    h = sha256()
    for name, p in model.named_parameters():
        h.update(name.encode())
        h.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()
