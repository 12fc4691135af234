"""The default sampler: any transformers causal LM, token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo.draws import generator
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling, truncate
from mempo.policies.weights import load_weights
from mempo.types import Completion, FinishReason, Request


class TransformersSampler:
    """Decodes many prompts at once; finished ones leave the batch as it goes."""

    def __init__(self, model: Any, codec: Codec, *, stop: Sequence[str], batch_size: int):
        self.model = model.eval()
        self.codec = codec
        self.stop = tuple(stop)
        self.batch_size = batch_size
        self.eos = _end_ids(model, codec)
        # transformers 5.24 renamed it, and later releases know the new name alone.
        known = signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        # More tokens than a stop string covers.
        self._tail_tokens = max((len(s) for s in self.stop), default=0) + 2
        lasts = {s[-1] for s in self.stop}
        self._may_stop = {  # a stop string can only be completed by one of these
            i for i in range(len(codec.tokenizer)) if lasts & set(codec.text([i]))
        }

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion a request, in order. A stop string stays in the ids."""
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        completions: list[Completion | None] = [None] * len(requests)
        for at in range(0, len(order), self.batch_size):
            chosen = order[at : at + self.batch_size]
            for i, done in zip(
                chosen, self._decode([requests[i] for i in chosen], sampling), strict=True
            ):
                completions[i] = done
        return [c for c in completions if c is not None]

    def load(self, weights: Path) -> str:
        """Take new weights in place; the digest of what the model holds now."""
        return load_weights(self.model, weights)

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """[T - 1] log-probs of ids[1:], each after what stands before it, at temperature 1."""
        tokens = torch.tensor([ids], device=next(self.model.parameters()).device)
        logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].tolist()

    def _decode(self, requests: list[Request], sampling: Sampling) -> list[Completion]:
        device = next(self.model.parameters()).device
        prompts = [r.prompt_ids for r in requests]
        weighted = sampling.memory_weight != 1
        if weighted:  # below every row a twin, which reads the same without the memory
            prompts += [r.without_ids or r.prompt_ids for r in requests]
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.codec.pad_id)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for i, prompt in enumerate(prompts):  # padded on the left: all rows end together
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        limits = [r.max_tokens for r in requests]
        uniforms = [generator(*r.key).random(r.max_tokens) for r in requests]
        outputs: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        reasons: list[FinishReason] = ["length"] * len(requests)
        alive = list(range(len(requests)))
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache: Any = None
        step = 0
        while alive:
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_name: cache},
            )
            cache = out[self._cache_name]
            u = np.array([uniforms[i][step] for i in alive])
            logits = out.logits[:, -1].float()
            if weighted:
                remembering, without = logits.chunk(2)
                logits = without + sampling.memory_weight * (remembering - without)
            tokens, logps = _sample(logits, u, sampling)
            stay: list[int] = []
            for row, (i, token, logp) in enumerate(zip(alive, tokens, logps, strict=True)):
                outputs[i].append(token)
                logprobs[i].append(logp)
                if token in self.eos:
                    reasons[i] = "eos"
                elif self._stopped(outputs[i]):
                    reasons[i] = "stop"
                elif len(outputs[i]) < limits[i]:
                    stay.append(row)
            step += 1
            if len(stay) < len(alive):
                twins = [row + len(alive) for row in stay] if weighted else []
                alive = [alive[row] for row in stay]
                if not alive:
                    break
                keep = torch.tensor([*stay, *twins], device=device)
                cache.batch_select_indices(keep)
                mask, positions = mask[keep], positions[keep]
            last = [outputs[i][-1] for i in alive] * (2 if weighted else 1)
            ids = torch.tensor(last, device=device)[:, None]
            mask = torch.cat([mask, mask.new_ones((len(last), 1))], dim=1)
            positions = positions[:, -1:] + 1
        return [
            Completion(o, p, reason)
            for o, p, reason in zip(outputs, logprobs, reasons, strict=True)
        ]

    def _stopped(self, output: list[int]) -> bool:
        """Whether the newest token completed a stop string (possibly inside the token)."""
        if output[-1] not in self._may_stop:
            return False
        before = self.codec.text(output[-self._tail_tokens : -1])
        tail = self.codec.text(output[-self._tail_tokens :])
        return any(s in tail and s not in before for s in self.stop)


def _sample(
    logits: torch.Tensor, u: np.ndarray, sampling: Sampling
) -> tuple[list[int], list[float]]:
    """One token a row by inverse transform of the uniform draws `u`; and its log-prob.

    logits: [B, V] float32; u: [B] in [0, 1).
    """
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
        scaled = logits
    else:
        scaled = truncate(logits / sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)
        cumulative = scaled.softmax(-1).double().cumsum(-1)  # [B, V]
        point = torch.from_numpy(u).to(logits.device)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, point, right=True)[:, 0]
        chosen = chosen.clamp(max=logits.shape[-1] - 1)
    logps = scaled.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
    return chosen.tolist(), logps.tolist()


def _end_ids(model: Any, codec: Codec) -> set[int]:
    """Ids that end a generation: the tokenizer's and those of the model's generation settings."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    listed = ends if isinstance(ends, list) else [ends]
    return {codec.eos_id, *(int(i) for i in listed if i is not None)}
