"""What runs inside vLLM's workers: new weights, put where the old ones are."""

from __future__ import annotations

from collections.abc import Mapping
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
        self._check(tensors)
        return digest(tensors)

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compare what the engine holds with what came, bit for bit.

        Only what it holds as it came, or joined (q, k and v; gate and up): on CPU linear layers
        are packed, and parallel workers hold parts. The probe speaks for those.

        Raises:
            RuntimeError: naming a tensor that is not the one that came.
        """
        model: Any = self.model_runner.model
        joined = getattr(model, "packed_modules_mapping", {})
        for name, held in model.named_parameters():
            parts = [name]
            for whole, pieces in joined.items():
                if f".{whole}." in name:
                    parts = [name.replace(f".{whole}.", f".{piece}.") for piece in pieces]
            if not all(part in tensors for part in parts):
                continue
            came = torch.cat([tensors[part] for part in parts]).to(held.dtype)
            if held.shape[1:] != came.shape[1:] or len(held) < len(came):
                continue
            if not torch.equal(held[: len(came)].cpu(), came):  # a vocabulary is padded
                raise RuntimeError(f"vLLM does not hold the new {name}, but another")

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
