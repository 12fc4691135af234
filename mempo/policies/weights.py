"""Weights on their way from the learner to a sampler, and the proof that they arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import load_file, save_file

from mempo.config import Audit
from mempo.draws import generator
from mempo.types import Row

PROBE_TOKENS = 64
# bfloat16: the mean difference may be this share of the mean |log-prob|. Random tokens are unlikely
# (15 nats for SmolLM2-135M), and rounding grows with that: engines that agree were seen to differ
# by 0.5 to 1.1 %, a fine-tuned policy and the model that it came from by 12 %.
PROBE_SHARE = 0.03


@dataclass(frozen=True)
class Proof:
    """What a sampler has to show after it took a learner's weights."""

    digest: str  # sha256 over the weights
    probe: Row  # any token after any other, so that every part of the model speaks
    logprobs: np.ndarray  # [targets] of the probe, by the learner


class WeightsError(RuntimeError):
    """A sampler does not hold the weights that it was given."""


def probe_row(vocabulary: int) -> Row:
    """The same random ids every time."""
    ids = generator("probe").integers(vocabulary, size=PROBE_TOKENS).tolist()
    return Row(ids, [i > 0 for i in range(PROBE_TOKENS)])


def check_arrival(
    version: int, digest: str, logprobs: ArrayLike, proof: Proof, settings: Audit, *, exact: bool
) -> None:
    """Compare what a sampler read, and what it then says of the probe, with the learner's.

    The digest proves that the right bytes came, the probe that the engine computes with them: an
    engine that packs or fuses weights may have kept a copy of old ones. exact (float32): the
    audit's bound on the largest difference; else (bfloat16) `PROBE_SHARE` bounds the mean, which
    shows a policy of many updates ago or another one, not the update before.

    Raises:
        WeightsError: naming the version and what differs.
    """
    if digest != proof.digest:
        raise WeightsError(
            f"weights of version {version} did not arrive: sha256 {digest[:12]} in the sampler, "
            f"{proof.digest[:12]} in the learner"
        )
    gap = np.nan_to_num(np.abs(np.asarray(logprobs) - proof.logprobs), nan=np.inf)
    if not np.isfinite(proof.logprobs).all():
        raise WeightsError(f"weights of version {version}: the learner's own probe is not finite")
    value, bound, name = gap.max(), settings.max_diff, "audit.max_diff ="
    if not exact:
        size = np.abs(proof.logprobs).mean()
        value, bound, name = gap.mean(), PROBE_SHARE * size, f"{PROBE_SHARE:.0%} of their size,"
    if not value <= bound:
        raise WeightsError(
            f"weights of version {version} are not in use: log-probs of a probe differ by "
            f"{value:.2e} between sampler and learner (bound {name} {bound:g})"
        )


def save_weights(source: Any, path: Path) -> str:
    """Write parameters (tied ones once) of a model, or by name, as safetensors; their digest."""
    tensors = {n: p.detach().cpu().contiguous() for n, p in _by_name(source).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    save_file(tensors, aside)
    aside.rename(path)
    return digest(tensors)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """What `save_weights` wrote, by parameter."""
    return load_file(path)


@torch.no_grad()
def load_weights(model: Any, path: Path) -> str:
    """Copy the parameters in place, tied ones once; the digest of what the model holds now."""
    tensors = read_weights(path)
    parameters = dict(model.named_parameters())
    here, there = ({n: t.shape for n, t in d.items()} for d in (parameters, tensors))
    if here != there:
        odd = sorted({n for n, _ in here.items() ^ there.items()})[:3]
        raise ValueError(f"weights {path} are of another model: {', '.join(odd)} differ")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    return digest(model)


def digest(source: Any) -> str:
    """sha256 over names and bytes of all parameters of a model, or of tensors by name."""
    tensors = _by_name(source)
    h = sha256()
    for name in sorted(tensors):
        h.update(name.encode())
        h.update(tensors[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def _by_name(source: Any) -> Mapping[str, torch.Tensor]:
    return source if isinstance(source, Mapping) else dict(source.named_parameters())
