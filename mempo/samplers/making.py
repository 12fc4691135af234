"""The sampler that the settings name, ready to act and to take new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mempo.agent.protocol import stop_strings
from mempo.agent.rollout import Sampler
from mempo.config import Experiment
from mempo.policies.codec import Codec
from mempo.policies.loading import load_model
from mempo.policies.shipped import model_path
from mempo.samplers.hf import TransformersSampler


class PolicySampler(Sampler, Protocol):
    """A sampler of a policy whose weights change."""

    def load(self, weights: Path) -> str:
        """Take new weights in place; the digest of what was read."""
        ...

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """[T - 1] log-probs of ids[1:], each after what stands before it, at temperature 1."""
        ...


def make_sampler(experiment: Experiment, codec: Codec, scratch: Path) -> PolicySampler:
    """`rollout.engine` with `policy.model`; `scratch` is an empty folder for the meanwhile."""
    policy, rollout = experiment.policy, experiment.rollout
    stop = stop_strings(experiment.agent)
    if rollout.engine == "transformers":
        model = load_model(policy, codec, seed=experiment.seed)
        return TransformersSampler(model, codec, stop=stop, batch_size=rollout.batch_size)
    from mempo.samplers.vllm import VllmSampler

    folder = model_path(policy.model)
    if folder == "tiny":  # made from the seed: vLLM wants it in a folder
        folder = str(scratch / "model")
        load_model(policy, codec, seed=experiment.seed).save_pretrained(folder)
    # Alone, without the model's configuration, it is loaded as what it is (see Decisions).
    codec.tokenizer.save_pretrained(scratch / "tokenizer")
    return VllmSampler(
        folder,
        scratch / "tokenizer",
        codec,
        stop=stop,
        dtype=policy.dtype,
        max_tokens=rollout.max_prompt_tokens + rollout.max_step_tokens,
        batch_size=rollout.batch_size,
        cache_gib=rollout.cache_gib,
    )
