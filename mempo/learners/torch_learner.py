"""The default learner: one process, any transformers causal LM.

It is blind to algorithms: rows, advantages and weights come in, an update and metrics come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo.config import Learner, Loss
from mempo.learners.loss import Targets, total_loss
from mempo.learners.optimizer import MasterAdamW
from mempo.learners.packing import Batch, MicroBatch, micro_batches, to_batch
from mempo.learners.readout import check_supported, target_logprobs
from mempo.learners.shared import takes_segments
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.loading import load_into, recompute_activations
from mempo.policies.lora import merged_weights
from mempo.types import Row

# In a checkpoint, beside the model: safetensors under a name that no engine takes for weights.
OPTIMIZER = "optimizer.state"
_NONE = np.zeros(0, dtype=np.float32)  # log-probs of a row without targets


@dataclass(frozen=True)
class TrainRow:
    """A row with what its target tokens are worth."""

    row: Row
    advantages: np.ndarray  # [targets]
    old_logprobs: np.ndarray | None  # [targets], the learner's before the update; None: on policy
    weight: float  # of each target token, fixed on the whole minibatch
    ref_logprobs: np.ndarray | None = None  # [targets], of the reference policy
    importance: np.ndarray | None = None  # [targets], corrects for what the sampler sampled from


@dataclass(frozen=True)
class Share:
    """A micro-batch of one process."""

    rows: list[int]  # indices
    counts: bool  # False: computed only to keep step with the others
    last: bool  # of this update


class TorchLearner:
    """Scores and updates one model."""

    def __init__(
        self,
        model: Any,
        codec: Codec,
        settings: Learner,
        *,
        reference: bool = False,
        previous: bool = False,
        embedding_lr_factor: float = 1.0,
    ):
        check_supported(model)
        self.model = model.eval()  # no dropout: the ratio of the first update is 1
        self.shared = takes_segments(model)  # else rows are padded
        if settings.activation_checkpointing:
            recompute_activations(model)
        self.codec = codec
        self.settings = settings
        self.embedding_lr_factor = embedding_lr_factor
        self.reference = deepcopy(model).requires_grad_(False) if reference else None
        self.previous = deepcopy(model).requires_grad_(False) if previous else None
        self.tokens = 0  # that went through the model: shared ones once a pass, no padding

    @cached_property
    def optimizer(self) -> MasterAdamW:
        """Made at the first update: a learner that only scores holds no optimiser state."""
        return MasterAdamW(self.model, self.settings, embedding_lr_factor=self.embedding_lr_factor)

    @torch.no_grad()
    def logprobs(
        self,
        rows: Sequence[Row],
        sampling: Sampling | None = None,
        *,
        reference: bool = False,
        previous: bool = False,
    ) -> list[np.ndarray]:
        """[targets] log-probs of each row's targets; temperature 1, whole vocabulary by default.

        Of the policy, of the reference, or of the policy as `keep` found it.
        """
        model = self.reference if reference else self.previous if previous else self.model
        if model is None:
            raise ValueError(
                "this learner was made without a reference policy (loss.kl is 0, and no dpo)"
                if reference
                else "this learner was made without a copy of previous weights (pipeline is sync)"
            )
        results: dict[int, np.ndarray] = {}
        for share in self._shares(rows, graph=False):
            chosen = [rows[i] for i in share.rows]
            logp, _ = self._read(model, self._laid_out(chosen), sampling)
            if share.counts:
                results |= zip(share.rows, _by_row(logp, chosen), strict=True)
        results = self._joined(results)
        return [results.get(i, _NONE) for i in range(len(rows))]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the weights as they are now, for `logprobs(previous=True)`."""
        assert self.previous is not None
        pairs = zip(self.previous.parameters(), self.model.parameters(), strict=True)
        for copy, p in pairs:
            if p.requires_grad:
                with self._gathered([p]):
                    copy.copy_(p)

    def update(
        self,
        rows: Sequence[TrainRow],
        loss: Loss,
        sampling: Sampling | None = None,
        check: Callable[[list[np.ndarray]], None] | None = None,
    ) -> dict[str, float]:
        """One optimiser step on a minibatch and its metrics. Nothing to train: no step.

        Rows on policy take their old log-probs from this very pass, which saves one. `check` gets
        each row's log-probs [targets] before the step, and prevents it by raising.

        `policy` is the policy loss as it is minimised; `kl`, `clip_frac` and `ratio_mean` (see
        `mempo.learners.loss`) are means over tokens, weighted as in the loss, `entropy` is the
        plain one. Without any non-zero advantage, KL or entropy bonus the gradient is exactly
        zero, and the step is skipped, so that weight decay and momentum do not move the policy
        on no evidence.
        """
        useful = [r for r in rows if r.row.targets]
        regularised = loss.kl > 0 or loss.entropy > 0
        if not (any(np.any(r.advantages) for r in useful) or (regularised and useful)):
            return {
                "policy": 0.0, "kl": 0.0, "clip_frac": 0.0, "grad_norm": 0.0, "skipped": 1.0
            }  # fmt: skip
        sums: dict[str, float] = {"kl": 0.0}
        seen: dict[int, np.ndarray] = {}
        for share in self._shares([r.row for r in useful]):
            chosen = [useful[i] for i in share.rows]
            batch = self._laid_out([r.row for r in chosen])
            logp, entropy = self._read(self.model, batch, sampling, with_entropy=True)
            assert entropy is not None
            objective, metrics = total_loss(logp, entropy, _targets(chosen, logp.detach()), loss)
            self._backward(objective, share)
            if share.counts:
                seen |= zip(share.rows, _by_row(logp, [r.row for r in chosen]), strict=True)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value) * share.counts
        if check:
            values = iter(sorted(self._joined(seen).items()))
            try:
                check([next(values)[1] if r.row.targets else _NONE for r in rows])
            except BaseException:
                self.model.zero_grad()
                raise
        sums = self._summed(sums)
        weight = sum(r.weight * r.row.targets for r in useful)  # 1, or less with 'constant'
        divisor = {"policy": 1.0, "entropy": float(sum(r.row.targets for r in useful))}
        means = {name: value / divisor.get(name, weight) for name, value in sums.items()}
        return {**means, "grad_norm": self._step(self.settings.lr), "skipped": 0.0}

    def descend(
        self, rows: Sequence[Row], coefficients: Sequence[float], sampling: Sampling | None = None
    ) -> float:
        """One optimiser step down sum_r c_r sum_k log pi(k); the gradient's norm.

        coefficients: c_r of each row, its targets' k. Rows with c = 0 cost nothing.
        """
        used = [(row, c) for row, c in zip(rows, coefficients, strict=True) if c]
        for share in self._shares([row for row, _ in used]):
            chosen = [used[i] for i in share.rows]
            logp, _ = self._read(self.model, self._laid_out([row for row, _ in chosen]), sampling)
            weights = np.concatenate([np.full(row.targets, c) for row, c in chosen])
            self._backward((logp * torch.from_numpy(weights).to(logp)).sum(), share)
        return self._step(self.settings.lr)

    def supervise(self, rows: Sequence[Row], lr: float, temperature: float = 1.0) -> float:
        """One optimiser step of maximum likelihood; the mean loss per target in nats.

        temperature: the likelihood is that of samples at this temperature.
        """
        count = sum(r.targets for r in rows)
        total = 0.0
        for share in self._shares(rows):
            batch = self._laid_out([rows[i] for i in share.rows])
            logp, _ = self._read(self.model, batch, Sampling(temperature))
            loss = -logp.sum() / count
            self._backward(loss, share)
            total += float(loss.detach()) * share.counts
        total = self._summed({"loss": total})["loss"]
        self._step(lr)
        return total

    def weights(self) -> Mapping[str, torch.Tensor]:
        """All parameters by name, tied ones once, adapters merged."""
        if self.settings.lora_rank:
            return dict(merged_weights(self.model))
        return dict(self.model.named_parameters())

    def save(self, folder: Path) -> None:
        """Model and tokenizer as transformers loads them, optimiser state beside them."""
        self.model.save_pretrained(folder, state_dict=dict(self.weights()))
        self.codec.tokenizer.save_pretrained(folder)
        self.optimizer.save(folder / OPTIMIZER)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote: weights and optimiser state; the reference stays."""
        if not self.settings.lora_rank:  # else the model is the start policy, below its adapters
            load_into(self.model, folder)
        self.optimizer.load(folder / OPTIMIZER)

    # What a learner of several ranks does otherwise.

    def _shares(self, rows: Sequence[Row], *, graph: bool = True) -> Iterator[Share]:
        """The micro-batches that this process computes; `graph` as in `micro_batches`."""
        batches = self._batches(rows, graph)
        for batch in batches:
            yield Share(batch.rows, counts=True, last=batch is batches[-1])

    def _batches(self, rows: Sequence[Row], graph: bool) -> list[MicroBatch]:
        """The micro-batches of all processes, their tokens counted."""
        budget = self.settings.micro_tokens
        batches = micro_batches(rows, budget, shared=self.shared, graph=graph)
        self.tokens += sum(batch.tokens for batch in batches)
        return batches

    def _laid_out(self, rows: Sequence[Row]) -> Batch:
        device = next(self.model.parameters()).device
        return to_batch(rows, self.codec.pad_id, device, shared=self.shared)

    def _read(
        self, model: Any, batch: Batch, sampling: Sampling | None, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `target_logprobs`."""
        return target_logprobs(model, batch, sampling, with_entropy=with_entropy)

    def _gathered(self, parameters: Sequence[torch.nn.Parameter]) -> Any:
        """The block in which these parameters are whole."""
        return nullcontext()

    def _backward(self, objective: torch.Tensor, share: Share) -> None:
        objective.backward()

    def _step(self, lr: float) -> float:
        return self.optimizer.step(lr)

    def _summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums over all ranks."""
        return sums

    def _joined(self, results: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The results of all ranks."""
        return results


def _by_row(logp_N: torch.Tensor, rows: Sequence[Row]) -> list[np.ndarray]:
    """[targets] of each row."""
    return np.split(logp_N.detach().cpu().numpy(), np.cumsum([r.targets for r in rows])[:-1])


def _targets(chosen: Sequence[TrainRow], logp_N: torch.Tensor) -> Targets:
    """The target tokens of `chosen`, row after row; `logp_N`: their log-probs now."""
    device = logp_N.device

    def joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(device)

    def joined_if_all(parts: Sequence[np.ndarray | None]) -> torch.Tensor | None:
        known = [part for part in parts if part is not None]
        assert len(known) in (0, len(parts)), "of all rows or of none"
        return joined(known) if known else None

    counts = torch.tensor([r.row.targets for r in chosen])
    old = joined_if_all([r.old_logprobs for r in chosen])
    return Targets(
        old=logp_N if old is None else old,
        advantages=joined([r.advantages for r in chosen]),
        weights=joined([np.full(r.row.targets, r.weight) for r in chosen]),
        rows=torch.arange(len(chosen)).repeat_interleave(counts).to(device),
        ref=joined_if_all([r.ref_logprobs for r in chosen]),
        importance=joined_if_all([r.importance for r in chosen]),
    )
