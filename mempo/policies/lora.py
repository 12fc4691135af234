"""LoRA (Hu et al. 2021, arXiv 2106.09685) through peft: adapters beside every linear layer.

The adapters live inside the model, so that whatever runs the model runs them. What leaves the
learner, for samplers and as a checkpoint, has them merged: W + (alpha / r) B A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NAME = "default"  # peft's name of the only adapter

Gather = Callable[[Sequence[torch.nn.Parameter]], AbstractContextManager[Any]]


def add_adapters(model: Any, rank: int, *, seed: int) -> Any:
    """`model` with adapters of `rank` in all linear layers but the head, alone trainable.

    alpha is 2 r. B begins as zeros, so the policy is unchanged; A is drawn from `seed`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return inject_adapter_in_model(config, model)


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter, by its name."""
    return ".lora_" in name


@torch.no_grad()
def merged_weights(
    model: Any, gather: Gather = lambda parameters: nullcontext()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter under the name that it has without adapters, adapters merged; one by one.

    gather: the block in which parameters are whole, where they are cut up between ranks.
    """
    modules = dict(model.named_modules())
    for name, p in model.named_parameters():
        if is_adapter(name):
            continue
        module_name, _, kind = name.rpartition(".base_layer.")
        if kind == "weight":
            layer = modules[module_name]
            factors = [layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight]
            with gather([p, *factors]):
                whole = (p.float() + layer.get_delta_weight(_NAME).float()).to(p.dtype)
        else:
            with gather([p]):
                whole = p.detach().clone()
        yield name.replace(".base_layer.", "."), whole
