"""Probes of a policy: its folder, its weights, its tokenizer, and how long its prompts may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from flows.doctor_engines import torchvision_fault
from mempo.config import Agent, Environment, Experiment, Policy
from mempo.policies.shipped import how_to_make, model_path

if TYPE_CHECKING:
    from mempo.policies.codec import Codec


def check_model(model: str, *, cure: str = "") -> str:
    """What is at a folder or hub name; weights are not read. `cure`: what to do without."""
    cure = cure or how_to_make(model)
    if model == "tiny":
        return "a fresh tiny policy"
    folder = Path(model_path(model))
    if folder.is_dir():
        return _model_folder(folder)
    if model.count("/") != 1 or model.startswith(("models/", ".", "~", "/")):
        raise ValueError(f"there is no folder {model}; {cure}")
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return f"{model}, from the hub's cache"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"there is no folder {model}, and HF_HUB_OFFLINE forbids to fetch that name "
            f"from the hub; unset it, or {cure}"
        )
    return f"{model}, to be fetched from the hub"


def check_encoder(agent: Agent) -> str:
    """What says which texts are similar, for the agents that ask."""
    if not agent.embedding_model:
        return "BM25 says what is similar"
    if agent.kind not in ("retrieval", "external"):
        raise ValueError(f"it has no effect with agent.kind {agent.kind}; leave it out")
    return check_model(agent.embedding_model, cure="give a folder with an encoder, or '' for BM25")


def read_codec(policy: Policy, environment: Environment) -> Codec:
    """The policy's tokenizer. Raises a ValueError that names policy.model."""
    from mempo.policies.loading import load_codec  # imports torch

    try:
        return load_codec(policy, environment)
    except ValueError:
        raise
    except Exception as error:  # tokenizers knows no kinds of error, transformers says OSError
        reason = " ".join(str(error).split())[:200]
        if fault := torchvision_fault():
            raise ValueError(f"policy.model: no model can be read: {fault}") from None
        if policy.model != "tiny" and not Path(model_path(policy.model)).is_dir():
            raise ValueError(
                f"policy.model: {policy.model} could not be fetched from the hub; check the name "
                "and the network, or give a folder"
            ) from None
        raise ValueError(
            f"policy.model: the tokenizer of {policy.model} cannot be read ({reason}); save it "
            "again (tokenizer.save_pretrained), or name another model"
        ) from None


def check_words(experiment: Experiment, codec: Codec, *, sft: bool = False) -> str:
    """Whether the policy knows the agent: its words and, on the atlas, what it was taught to be.

    A vocabulary of words made for one world lacks those of an agent it was not made for. For
    `sft` the words of all agents that it teaches are asked for.
    """
    from mempo.agent.coldstart import agent_of  # imports transformers
    from mempo.agent.protocol import protocol_words

    for kind in experiment.taught if sft else (experiment.agent.kind,):
        agent = agent_of(experiment.agent, kind)
        text, unknown = protocol_words(agent), codec.tokenizer.unk_token_id
        if unknown is None or unknown not in codec.encode(text):
            continue
        lost = [word for word in text.split() if unknown in codec.encode(word)]
        setting, cure = "agent.kind", "train one for this agent (`mempo sft`)"
        if agent.prompt == "full":
            setting, cure = "agent.prompt", "set agent.prompt=short"
        elif kind != experiment.agent.kind:
            setting, cure = "sft.agents", "leave that agent out, or begin from sft.model=tiny"
        raise ValueError(
            f"{setting}: the vocabulary of {experiment.policy.model} lacks words of agent "
            f"'{kind}' ({', '.join(lost[:3])}); {cure}"
        )
    if not sft:
        _check_taught(experiment)
    return "every word of the agent's protocol is known"


def _check_taught(experiment: Experiment) -> None:
    """A policy that was trained from scratch to be some agents is lost as another one."""
    record = Path(model_path(experiment.policy.model)) / "checkpoint.json"
    taught = _read_json(record).get("taught") if record.is_file() else None
    if taught and experiment.environment.name == "atlas" and experiment.agent.kind not in taught:
        raise ValueError(
            f"agent.kind: the cold start {experiment.policy.model} was taught to be "
            f"{', '.join(taught)}, not '{experiment.agent.kind}'; take one of them, or a policy "
            "that was taught all (`mempo sft --preset agents`)"
        )


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
        raise ValueError(
            f"{folder} has pickled weights, which run what their writer put in them when they are "
            "loaded; save it anew with save_pretrained, as model.safetensors"
        )
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
        raise ValueError(
            f"{path} cannot be read ({error}), so it is no model folder; give one that "
            "save_pretrained wrote (`mempo fetch smollm2` makes one)"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no settings, so it is no model folder")
    return content
