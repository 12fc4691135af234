"""The distribution that tokens are sampled from, the same for sampler and learner."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """Temperature, then top-k, then top-p. Temperature 0 is greedy.

    Greedy decoding has no distribution of its own; its log-probs are those of temperature 1.
    memory_weight w: sampled from l' = l_without + w (l - l_without), l the logits of the prompt
    and l_without those of the prompt without its memory; 1 is plain. At inference alone: what is
    sampled so is not what a learner trains.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    memory_weight: float = 1.0

    @property
    def divisor(self) -> float:
        """What logits are divided by."""
        return self.temperature or 1.0


def logprobs_of(
    logits: torch.Tensor, targets: torch.Tensor, sampling: Sampling | None = None
) -> torch.Tensor:
    """[N] log-probs of `targets` under the distribution that was sampled from.

    logits: [N, V]. Temperature first, then truncation, then normalisation, as samplers do.
    A target outside the truncated set counts as inside it: it was sampled, so it left the set by
    rounding at its edge or by an update since (or under another policy, the reference), and a
    log-prob of -inf would make audit and loss infinite.
    """
    s = sampling or Sampling()
    if s.memory_weight != 1:
        raise ValueError("a memory weight is for inference; its samples cannot be trained on")
    kept = logits if s.divisor == 1 else logits / s.divisor  # no copy of [N, V] without need
    if s.top_p < 1 or s.top_k > 0:
        own = kept.gather(-1, targets[:, None])
        kept = truncate(kept, top_p=s.top_p, top_k=s.top_k).scatter(-1, targets[:, None], own)
    return kept.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def truncate(logits: torch.Tensor, *, top_p: float = 1.0, top_k: int = 0) -> torch.Tensor:
    """[N, V] logits with everything outside top-k, then outside the nucleus top-p, at -inf.

    The nucleus is the smallest set of likeliest tokens whose probability reaches top_p.
    """
    if 0 < top_k < logits.shape[-1]:
        bound = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < bound, float("-inf"))
    if top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1) - probs >= top_p  # the mass before it has reached top_p
        logits = logits.masked_fill(outside.scatter(-1, order, outside), float("-inf"))
    return logits
