"""Probes of a policy: its folder, its weights, its tokenizer, and how long its prompts may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mempo.config import Environment, Experiment, Policy
from mempo.policies.shipped import model_path

if TYPE_CHECKING:
    from mempo.policies.codec import Codec


def check_model(policy: Policy) -> str:
    """What is at `policy.model`; its weights are not read."""
    if policy.model == "tiny":
        return "a fresh tiny policy"
    folder = Path(model_path(policy.model))
    if folder.is_dir():
        return _model_folder(folder)
    cure = (
        "give an existing folder (`mempo sft --preset wiki` makes models/wiki-sft, "
        "`mempo fetch smollm2` models/smollm2) or 'tiny'"
    )
    if policy.model.count("/") != 1 or policy.model.startswith(("models/", ".", "~", "/")):
        raise ValueError(f"there is no folder {policy.model}; {cure}")
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(policy.model, "config.json"), str):
        return f"{policy.model}, from the hub's cache"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"there is no folder {policy.model}, and HF_HUB_OFFLINE forbids to fetch that name "
            f"from the hub; unset it, or {cure}"
        )
    return f"{policy.model}, to be fetched from the hub"


def read_codec(policy: Policy, environment: Environment) -> Codec:
    """The policy's tokenizer. Raises a ValueError that names policy.model."""
    from mempo.policies.loading import load_codec  # imports torch

    try:
        return load_codec(policy, environment)
    except ValueError:
        raise
    except Exception as error:  # tokenizers knows no kinds of error, transformers says OSError
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"policy.model: the tokenizer of {policy.model} cannot be read ({reason}); save it "
            "again (tokenizer.save_pretrained), or name another model"
        ) from None


def check_words(experiment: Experiment, codec: Codec) -> str:
    """Whether the tokenizer knows the words of the agent's protocol.

    A vocabulary of words made for one world lacks those of an agent it was not made for.
    """
    from mempo.agent.protocol import protocol_words  # imports transformers

    unknown = codec.tokenizer.unk_token_id
    text = protocol_words(experiment.agent)
    if unknown is not None and unknown in codec.encode(text):
        lost = [word for word in text.split() if unknown in codec.encode(word)]
        full = experiment.agent.prompt == "full"
        cure = "set agent.prompt=short" if full else "train one for this agent (`mempo sft`)"
        raise ValueError(
            f"agent.{'prompt' if full else 'kind'}: the vocabulary of {experiment.policy.model} "
            f"lacks words of agent '{experiment.agent.kind}' ({', '.join(lost[:3])}); {cure}"
        )
    return "every word of the agent's protocol is known"


def check_lengths(experiment: Experiment) -> str:
    """Whether a step fits into the positions of the model."""
    rollout = experiment.rollout
    asked = rollout.max_prompt_tokens + rollout.max_step_tokens
    config = Path(model_path(experiment.policy.model)) / "config.json"
    known = _read_json(config).get("max_position_embeddings") if config.is_file() else None
    if isinstance(known, int) and asked > known:
        raise ValueError(
            f"{rollout.max_prompt_tokens} and rollout.max_step_tokens {rollout.max_step_tokens} "
            f"together exceed the {known} positions of {experiment.policy.model}; lower one"
        )
    return f"a step may take {asked} tokens"


def _model_folder(folder: Path) -> str:
    config = _read_json(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json; save a fast tokenizer there "
            "(tokenizer.save_pretrained)"
        )
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    elif not (folder / names[0]).is_file() and (folder / "pytorch_model.bin").is_file():
        return f"{folder}, a {config.get('model_type', 'model')} with pickled weights"
    from safetensors import SafetensorError, safe_open

    for name in names:
        try:
            # Opening reads the header and compares it with the file's length, not the weights.
            with safe_open(folder / name, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"the weights {folder / name} cannot be read ({error}); fetch or save them again"
            ) from None
    size = sum((folder / name).stat().st_size for name in names)
    return f"{folder}, a {config.get('model_type', 'model')} of {size / 1e6:.0f} MB"


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}), so it is no model folder") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no settings, so it is no model folder")
    return content
