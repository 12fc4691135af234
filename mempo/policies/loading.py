"""Load a policy: a local folder or a hub name of any transformers causal LM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mempo.config import Environment, Policy
from mempo.policies.codec import Codec
from mempo.policies.shipped import how_to_make, model_path


def load_codec(policy: Policy, environment: Environment) -> Codec:
    """The policy's tokenizer."""
    if policy.model == "tiny":
        from mempo.environments.atlas import AtlasWorld
        from mempo.policies.tiny import tiny_tokenizer

        return Codec(tiny_tokenizer(AtlasWorld(environment).words()))
    from transformers import PreTrainedTokenizerFast

    path = _checked(policy.model)
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        raise ValueError(
            f"policy.model: {path} has no tokenizer.json (a fast tokenizer); spans of "
            "tokens cannot be computed without one"
        )
    # What tokenizer.json says, as it is: AutoTokenizer rebuilds it as the kind that is usual for
    # the architecture, which is another tokenizer where the vocabulary is not the usual one.
    return Codec(PreTrainedTokenizerFast.from_pretrained(path))


def load_model(policy: Policy, codec: Codec, *, seed: int = 0) -> Any:
    """The policy's weights in `policy.dtype`, on the GPU where there is one.

    'tiny' is made from `seed`.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if policy.model == "tiny":
        from mempo.policies.tiny import tiny_model

        return tiny_model(len(codec.tokenizer), seed).to(device, getattr(torch, policy.dtype))
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        _checked(policy.model),
        dtype=getattr(torch, policy.dtype),
        attn_implementation="sdpa",
        use_safetensors=True,  # a pickle runs what its writer put in it
    )
    return model.to(device)


def recompute_activations(model: Any) -> None:
    """Keep no activations for the backward pass; dropout stays off.

    transformers does so in training mode alone, so that is what the model is put in.
    """
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


def load_into(model: Any, folder: Path) -> None:
    """Give `model` the weights of a folder that was saved from one of its kind.

    Raises:
        ValueError: the folder holds another architecture.
    """
    from transformers import AutoModelForCausalLM

    saved: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=model.dtype, use_safetensors=True
    )
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder} holds the weights of another model: {reason}") from None


def _checked(model: str) -> str:
    """Where the model is: a name that looks like a folder must be one, a hub name is left alone."""
    model = model_path(model)
    folder = Path(model)
    looks_local = folder.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"policy.model: {model} has no config.json, so it is not a model folder"
            )
    elif looks_local or model.startswith("models/"):
        raise ValueError(f"policy.model: there is no folder {model}; {how_to_make(model)}")
    return model
