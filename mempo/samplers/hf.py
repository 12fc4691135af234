"""The default sampler: any transformers causal LM, token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo.draws import generator
from mempo.policies.attention import attend_by_groups
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling, truncate
from mempo.policies.weights import load_weights
from mempo.samplers import kv
from mempo.samplers.generating import Generating
from mempo.types import Completion, FinishReason, Request

PREFILL_TOKENS = 2048  # of one pass over prompts; larger ones cost more by token on CPUs
STEM_TOKENS = 8192  # of all prompts that are kept for others to begin from
JOIN_EVERY = 8  # rows enter together, at least one for so many that decode

Prompt = tuple[int, ...]


@dataclass
class _Row:
    """A request on its way."""

    number: int
    request: Request
    sampling: Sampling
    uniforms: np.ndarray  # [max_tokens] in [0, 1)
    cached: int = 0  # tokens of its prompt that were there already
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def weighted(self) -> bool:
        return self.sampling.memory_weight != 1

    @property
    def prompts(self) -> list[list[int]]:
        """Its prompt; where the memory is weighted, below it a twin that reads the same without."""
        prompt, without = self.request.prompt_ids, self.request.without_ids
        return [prompt, without or prompt] if self.weighted else [prompt]


@dataclass
class _Batch:
    """Rows that decode together. A prompt is a line of the cache, and a row has one or two."""

    rows: list[_Row]
    cache: Any
    filled: list[int]  # columns of each line, at its end
    width: int  # columns of the cache


class TransformersSampler(Generating):
    """Decodes with a transformers model.

    Rows enter the batch as they come and leave it when they are finished. A prompt that several
    rows share is computed once, and what begins with it later begins from there.
    """

    def __init__(self, model: Any, codec: Codec, *, stop: Sequence[str], batch_size: int):
        self.model = model.eval()
        attend_by_groups(model)
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
        self._waiting: list[_Row] = []
        self._batch: _Batch | None = None
        self._stems: dict[Prompt, kv.Stem] = {}  # prompts that rows shared
        self._joins: bool | None = None  # whether rows can enter a batch under way

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        """Begin with a request; `number` tells its completion from the others'."""
        uniforms = generator(*request.key).random(request.max_tokens)
        self._waiting.append(_Row(number, request, sampling, uniforms))

    @torch.no_grad()
    def poll(self) -> list[tuple[int, Completion]]:
        """Decode for a moment; what is finished since the last call, by number."""
        if entering := self._entering():
            del self._waiting[: len(entering)]
            return self._enter(entering)
        batch = self._batch
        if batch is None:
            return []
        last = [[row.ids[-1]] for row in batch.rows for _ in row.prompts]
        batch.filled = [n + 1 for n in batch.filled]
        batch.width += 1
        logits, batch.cache = self._forward(last, batch.filled, batch.width, batch.cache)
        finished = self._advance(batch, logits)
        self._batch = batch if batch.rows else None
        return finished

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget all requests, of which `numbers` are on their way, and the prompts kept for them.

        Values differ in their last bits by what they begin from, so a rollout must find the same
        whether an evaluation came before it or, after a resume, none.
        """
        self._waiting, self._batch = [], None
        self._stems.clear()

    def load(self, weights: Path) -> str:
        """Take new weights in place and forget the prompts of the old; their digest."""
        if self._batch or self._waiting:
            raise RuntimeError("new weights came while requests still run")
        self._stems.clear()
        return load_weights(self.model, weights)

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """[T - 1] log-probs of ids[1:], each after what stands before it, at temperature 1."""
        tokens = torch.tensor([ids], device=self._device)
        logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].tolist()

    def _entering(self) -> list[_Row]:
        """The waiting rows that enter now: few at a time would cost a pass through the model each.

        Into a cache that cannot be joined rows enter together, when it is empty.
        """
        running = len(self._batch.rows) if self._batch else 0
        room = self._waiting[: self.batch_size - running]
        if running and (not self._joins or len(room) * JOIN_EVERY < running):
            return []
        return room

    def _enter(self, rows: list[_Row]) -> list[tuple[int, Completion]]:
        """Compute the prompts of new rows, sample a first token each and add them to the batch."""
        asked = [tuple(prompt) for row in rows for prompt in row.prompts]
        uses = Counter(asked)
        if self._joins is None:
            probe = asked[0]
            _, cache = self._forward([probe], [len(probe)], len(probe), None)
            self._joins = kv.can_join(cache)
        stems = {prompt: self._stem_of(prompt) for prompt in uses}
        held = {stem: self._stems[stem] for stem in stems.values() if stem}  # whatever is dropped

        def fresh(prompt: Prompt) -> int:
            """Tokens to compute, the last one in any case."""
            return len(prompt) - min(len(stems[prompt]), len(prompt) - 1)

        lines = sorted(uses, key=fresh, reverse=True)
        begun: dict[Prompt, int] = {}
        found: list[torch.Tensor] = []
        batch: _Batch | None = None
        for chunk in _chunks(lines, fresh) if self._joins else [lines]:
            # All compute equally many columns: a longer stem is used in part, where padding was.
            begun |= {p: max(len(p) - fresh(chunk[0]), 0) for p in chunk}
            cache, width = None, max(begun[p] for p in chunk)
            if width:
                known = [held.get(stems[p]) for p in chunk]
                cache = kv.begin(known, [begun[p] for p in chunk], width)
            filled = [len(p) for p in chunk]
            ids = [p[begun[p] :] for p in chunk]
            logits, cache = self._forward(ids, filled, max(filled), cache)
            for line, prompt in enumerate(chunk):
                if uses[prompt] > 1 and kv.can_begin(cache):
                    self._keep(prompt, kv.stem(cache, line, len(prompt)))
            found.append(logits)
            batch = _joined(batch, _Batch([], cache, filled, max(filled)))
        assert batch is not None
        seen: set[Prompt] = set()
        for row in rows:
            prompt = tuple(row.request.prompt_ids)
            row.cached = len(prompt) if prompt in seen else begun[prompt]
            seen.add(prompt)
        at = {prompt: line for line, prompt in enumerate(lines)}
        where = [at[prompt] for prompt in asked]
        batch.rows = rows
        self._select(batch, where)
        finished = self._advance(batch, torch.cat(found)[where])
        if batch.rows:
            if self._joins and self._batch is None:
                kv.preallocate(batch.cache)
            self._batch = _joined(self._batch, batch)
        return finished

    def _forward(
        self, ids: Sequence[Sequence[int]], filled: Sequence[int], width: int, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        """([lines, V] float32 logits after the last column, the cache with `width` columns).

        ids: what is computed of each line; padded on the left, so that all lines end together.
        filled: tokens of each line, those in the cache included.
        """
        columns = max(map(len, ids))
        tokens = torch.full((len(ids), columns), self.codec.pad_id)
        for line, part in enumerate(ids):
            tokens[line, columns - len(part) :] = torch.tensor(part)
        place = torch.arange(width) - (width - torch.tensor(filled)[:, None])  # [lines, width]
        out = self.model(
            input_ids=tokens.to(self._device),
            attention_mask=(place >= 0).long().to(self._device),
            position_ids=place[:, -columns:].clamp(min=0).to(self._device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return out.logits[:, -1].float(), out[self._cache_name]

    def _advance(self, batch: _Batch, logits: torch.Tensor) -> list[tuple[int, Completion]]:
        """Sample a token for each row; those that end leave the batch. logits: [lines, V]."""
        (sampling,) = {row.sampling for row in batch.rows}
        if sampling.memory_weight != 1:
            remembering, without = logits[0::2], logits[1::2]
            logits = without + sampling.memory_weight * (remembering - without)
        u = np.array([row.uniforms[len(row.ids)] for row in batch.rows])
        stay: list[int] = []
        finished: list[tuple[int, Completion]] = []
        for at, (row, token, logp) in enumerate(
            zip(batch.rows, *_sample(logits, u, sampling), strict=True)
        ):
            row.ids.append(token)
            row.logprobs.append(logp)
            if reason := self._end_of(row):
                done = Completion(row.ids, row.logprobs, reason, row.cached)
                finished.append((row.number, done))
            else:
                stay.append(at)
        if finished and stay:
            each = len(batch.filled) // len(batch.rows)
            self._select(batch, [at * each + n for at in stay for n in range(each)])
        batch.rows = [batch.rows[at] for at in stay]
        return finished

    def _select(self, batch: _Batch, lines: Sequence[int]) -> None:
        """Keep these lines of a batch, in this order, and the columns that they need."""
        batch.filled = [batch.filled[line] for line in lines]
        if self._joins:
            batch.width = max(batch.filled)
        kv.select(batch.cache, lines, batch.width)

    def _stem_of(self, prompt: Prompt) -> Prompt:
        """The longest kept prompt that `prompt` begins with; () where there is none."""
        found = (stem for stem in self._stems if prompt[: len(stem)] == stem)
        return max(found, key=len, default=())

    def _keep(self, prompt: Prompt, stem: kv.Stem) -> None:
        """Keep a prompt, and drop the oldest ones where they get too many."""
        self._stems[prompt] = stem
        while sum(map(len, self._stems)) > STEM_TOKENS:
            del self._stems[next(iter(self._stems))]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _end_of(self, row: _Row) -> FinishReason | None:
        if row.ids[-1] in self.eos:
            return "eos"
        if self._stopped(row.ids):
            return "stop"
        return "length" if len(row.ids) == row.request.max_tokens else None

    def _stopped(self, output: list[int]) -> bool:
        """Whether the newest token completed a stop string (possibly inside the token)."""
        if output[-1] not in self._may_stop:
            return False
        before = self.codec.text(output[-self._tail_tokens : -1])
        tail = self.codec.text(output[-self._tail_tokens :])
        return any(s in tail and s not in before for s in self.stop)


def _chunks(lines: Sequence[Prompt], fresh: Callable[[Prompt], int]) -> Iterator[list[Prompt]]:
    """Lines in order of `fresh`, most first, in parts of at most PREFILL_TOKENS padded tokens."""
    chunk: list[Prompt] = []
    for prompt in lines:
        if chunk and fresh(chunk[0]) * (len(chunk) + 1) > PREFILL_TOKENS:
            yield chunk
            chunk = []
        chunk.append(prompt)
    yield chunk


def _joined(batch: _Batch | None, other: _Batch) -> _Batch:
    """The rows of both in one."""
    if batch is None:
        return other
    kv.join(batch.cache, other.cache)
    batch.rows += other.rows
    batch.filled += other.filled
    batch.width = max(batch.width, other.width)
    return batch


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
