"""Which texts are most like a query: BM25, or embeddings where a model is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mempo.environments.retrievers import Bm25Retriever
from mempo.types import Passage


def most_similar(query: str, texts: Sequence[str], k: int, *, model: str = "") -> list[int]:
    """Indices of the at most `k` texts most similar to `query`, best first.

    BM25 leaves out texts that share no word with the query. `model`: local folder or hub name of
    a transformers encoder; then texts are compared by the cosine of their mean last hidden states.
    """
    if not texts or k < 1:
        return []
    if not model:
        passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]
        [found] = Bm25Retriever(passages).search([query], k)
        assert isinstance(found, list)  # an index in memory answers every query
        return [int(passage.id) for passage in found]
    embedded = _embed(model, [query, *texts])
    similarity = embedded[1:] @ embedded[0]
    return np.argsort(-similarity, kind="stable")[:k].tolist()


@lru_cache(maxsize=1)
def _encoder(model: str) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    return AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()


def _embed(model: str, texts: Sequence[str]) -> np.ndarray:
    """[texts, D] unit vectors."""
    import torch

    tokenizer, encoder = _encoder(model)
    rows = []
    with torch.no_grad():
        for text in texts:  # one at a time: no padding, so no mask to get wrong
            batch = tokenizer(text, return_tensors="pt", truncation=True)
            hidden = encoder(**{k: batch[k] for k in ("input_ids", "attention_mask")})
            rows.append(hidden.last_hidden_state[0].mean(0).float().numpy())
    stacked = np.stack(rows)
    return stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
