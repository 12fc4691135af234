"""What runs inside vLLM's workers: new weights, put where the old ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mempo.policies.weights import digest, read_weights


class PolicyWorker:
    """Methods that vLLM adds to its worker (`worker_extension_cls`)."""

    model_runner: Any

    def load_policy(self, weights: str) -> str:
        """Load a learner's weights in place; the digest of what this worker read."""
        tensors = read_weights(Path(weights))
        self.model_runner.reload_weights(weights_iterator=iter(tensors.items()))
        self._renew_tied_head()
        return digest(tensors)

    def _renew_tied_head(self) -> None:
        """Pack a tied lm_head anew on CPU, where it would go on with the old embedding.

        vLLM 0.32 packs linear layers for its CPU kernels as it loads them, but a head that is
        tied to the embedding is no layer with a weight of its own, and its packed copy stays.
        """
        model: Any = self.model_runner.model
        head: Any = getattr(model, "lm_head", None)
        if self.model_runner.device.type != "cpu" or not hasattr(head, "cpu_linear"):
            return
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        embedding = model.model.embed_tokens.weight
        if model.config.tie_word_embeddings and head.weight is not embedding:
            with torch.no_grad():
                head.weight.copy_(embedding)
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
