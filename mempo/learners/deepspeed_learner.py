"""The learner of several ranks: DeepSpeed's ZeRO 0 to 3 under the same updates.

Every rank is a process with the same rows. Each computes every n-th micro-batch; sums and log-probs
are exchanged, so that all ranks return the same numbers, and gradients are summed over the ranks,
because the weights of tokens are fixed on the whole minibatch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mempo.config import Learner
from mempo.learners.optimizer import parameter_groups
from mempo.learners.packing import Batch
from mempo.learners.readout import Readout, hidden_states
from mempo.learners.torch_learner import OPTIMIZER, Share, TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.policies.lora import is_adapter, merged_weights
from mempo.types import Row


class _Head(torch.nn.Module):
    """What reads hidden states out: a module, so that ZeRO 3 gathers its weights around that."""

    def __init__(self, head: torch.nn.Linear):
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden: torch.Tensor, *rest: Any) -> Any:
        return Readout.apply(hidden, self.weight, self.bias, *rest)


class _Policy(torch.nn.Module):
    """A forward pass that DeepSpeed sees whole: ZeRO 3 gathers weights by its hooks."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.head = _Head(model.get_output_embeddings())

    def forward(self, batch: Batch, sampling: Sampling | None, with_entropy: bool) -> Any:
        hidden = hidden_states(self.model, batch)
        return self.head(hidden, batch.targets, sampling, with_entropy)


def join_ranks(rank: int, ranks: int, address: str) -> None:
    """Connect this process to the others: gloo on CPU, NCCL on GPUs.

    address: 'host:port' that is free on the machine of rank 0.
    """
    host, _, port = address.rpartition(":")
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"LOCAL_SIZE": "1", "MASTER_ADDR": host, "MASTER_PORT": port}
    import deepspeed

    if on_cpu:
        # Else it compiles a kernel for ranks that share memory, for minutes and with a lock that
        # outlives a kill; gloo does the same, and between machines too.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo" if on_cpu else "nccl", verbose=False)


class DeepSpeedLearner(TorchLearner):
    """Scores and updates one model with all the ranks that `join_ranks` connected.

    Every method has to be called on all ranks, with the same arguments.
    """

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
        super().__init__(
            model,
            codec,
            settings,
            reference=reference,
            previous=previous,
            embedding_lr_factor=embedding_lr_factor,
        )
        import deepspeed

        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.names = [n for n, p in model.named_parameters() if p.requires_grad]
        self.trained = [p for p in model.parameters() if p.requires_grad]
        groups = zip(parameter_groups(model, self.trained), (1.0, embedding_lr_factor), strict=True)
        kept = [(group, factor) for group, factor in groups if group]  # adapters: no embeddings
        self.factors = [factor for _, factor in kept]
        adamw = torch.optim.AdamW(
            [{"params": group} for group, _ in kept],
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": settings.grad_clip,
            "bf16": {"enabled": model.dtype == torch.bfloat16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            **json.loads(settings.deepspeed),
        }
        self.engine, *_ = deepspeed.initialize(
            model=_Policy(model), optimizer=adamw, config=config, dist_init_required=False
        )
        self.engine.train(model.training)
        self.adamw = adamw
        self._bare = self.engine.optimizer is adamw
        self._begin_state()

    @cached_property
    def optimizer(self) -> Any:
        raise AssertionError("the engine has the optimiser")

    def weights(self) -> Mapping[str, torch.Tensor]:
        """All parameters by name, whole, adapters merged; on rank 0, for the others have no use."""
        found = merged_weights(self.model, self._gathered)
        return {name: tensor.cpu() for name, tensor in found if self.rank == 0}

    def save(self, folder: Path) -> None:
        """Model and tokenizer as transformers loads them, optimiser state beside them; by rank 0.

        The files are those of the torch learner: any number of ranks, and that one, go on from
        them.
        """
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        weights = self.weights()
        tensors: dict[str, torch.Tensor] = {}
        steps = {float(s["step"]) for s in self.adamw.state.values() if "step" in s}
        for name, p in zip(self.names, self.trained, strict=True):
            for key in ("exp_avg", "exp_avg_sq"):
                value = safe_get_full_optimizer_state(p, key)
                if value is None:  # ZeRO 0 leaves the state where torch has it
                    value = self.adamw.state.get(p, {}).get(key)
                if value is not None and steps != {0.0} and self.rank == 0:
                    tensors[f"{name}.{key}"] = value.detach().cpu().contiguous().clone()
                    tensors[f"{name}.step"] = torch.tensor(max(steps))
            if p.dtype != torch.float32 or is_adapter(name):
                master = safe_get_full_fp32_param(p)
                if master is None:  # ZeRO 0 in float32
                    master = p
                if self.rank == 0:
                    tensors[f"{name}.master"] = master.detach().cpu().contiguous().clone()
        if self.rank == 0:
            self.model.save_pretrained(folder, state_dict=dict(weights))
            self.codec.tokenizer.save_pretrained(folder)
            save_file(tensors, folder / OPTIMIZER)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote, or the torch learner; the reference stays."""
        from transformers import AutoModelForCausalLM

        tensors = load_file(folder / OPTIMIZER)
        weights = {n: t for n in self.names if (t := tensors.get(f"{n}.master")) is not None}
        if len(weights) < len(self.names):  # of float32 weights the model's own file is all
            saved: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=self.model.dtype, use_safetensors=True
            )
            weights = dict(saved.named_parameters())
        for name, p in zip(self.names, self.trained, strict=True):
            with self._gathered([p], write=True), torch.no_grad():
                p.data.copy_(weights[name].to(p.device))
            self._set(p, weights[name].detach())
            for key in ("exp_avg", "exp_avg_sq"):
                if (value := tensors.get(f"{name}.{key}")) is None:
                    continue
                if p in self.adamw.state:
                    self.adamw.state[p][key].copy_(value)
                else:
                    self._set(p, value, key)
        steps = [t for n, t in tensors.items() if n.endswith(".step")]
        for state in self.adamw.state.values():
            if "step" in state and steps:
                state["step"] = torch.full_like(torch.as_tensor(state["step"]), float(steps[0]))

    def _begin_state(self) -> None:
        """Adam's state as before its first step, so that it can be read and set at any time.

        Left to itself it comes into being group by group in the first step; ZeRO 1 and 2 then note
        after the first group already where all of it lies, and never find the second's.
        """
        zero = self.engine.optimizer
        parts = getattr(zero, "fp32_partitioned_groups_flat", None)  # ZeRO 3's own list
        for p in parts or [p for group in self.adamw.param_groups for p in group["params"]]:
            zeros = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
            self.adamw.state[p] = {"step": torch.zeros(()), **zeros}
        link = getattr(zero, "_lazy_init_hp_params_optimizer_state", None)
        if link:
            link()

    def _set(self, p: torch.nn.Parameter, value: torch.Tensor, key: str = "") -> None:
        """Set a float32 weight, or with `key` a moment of Adam; `value` is the whole tensor."""
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        cut = getattr(p, "ds_tensor", None)
        if cut is None:
            if key:
                safe_set_full_optimizer_state(p, value, key)
            else:
                safe_set_full_fp32_param(p, value)
            return
        # ZeRO 3: this rank's part, padded where the ranks do not divide the whole.
        size = cut.ds_numel
        flat = torch.nn.functional.pad(value.flatten(), (0, size * self.ranks - value.numel()))
        part = flat.narrow(0, size * self.rank, size)
        if key:
            safe_set_local_optimizer_state(p, part, key)
        else:
            safe_set_local_fp32_param(p, part)

    def _gathered(self, parameters: Sequence[torch.nn.Parameter], *, write: bool = False) -> Any:
        """The block in which parameters that ZeRO 3 has cut up are whole."""
        cut = [p for p in parameters if hasattr(p, "ds_id")]
        if not cut:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(cut, modifier_rank=0 if write else None)

    def _shares(self, rows: Sequence[Row], *, graph: bool = True) -> Iterator[Share]:
        """Every n-th micro-batch; all ranks get equally many, for each pass is a collective one."""
        batches = self._batches(rows, graph)
        rounds = -(-len(batches) // self.ranks)
        for number in range(rounds):
            at, last = number * self.ranks + self.rank, number == rounds - 1
            if at < len(batches):
                yield Share(batches[at].rows, counts=True, last=last)
            else:  # any row
                yield Share(batches[-1].rows[-1:], counts=False, last=last)

    def _read(
        self, model: Any, batch: Batch, sampling: Sampling | None, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if model is not self.model:  # the reference, or the previous weights
            return super()._read(model, batch, sampling, with_entropy=with_entropy)
        return self.engine(batch, sampling, with_entropy)

    def _backward(self, objective: torch.Tensor, share: Share) -> None:
        self.engine.set_gradient_accumulation_boundary(share.last)
        # DeepSpeed averages over the ranks; the loss is a sum over all rows.
        self.engine.backward(objective * (self.ranks * share.counts), scale_wrt_gas=False)

    def _step(self, lr: float) -> float:
        zero: Any = self.engine.optimizer
        for group, factor in zip(zero.param_groups, self.factors, strict=True):
            group["lr"] = lr * factor
        # ZeRO 0 in float32 is torch's own optimiser, of which DeepSpeed keeps no norm.
        gradients = [p.grad for p in self.trained if p.grad is not None] if self._bare else []
        plain = float(torch.nn.utils.get_total_norm(gradients)) if self._bare else 0.0
        self.engine.step()
        found = plain if self._bare else self.engine.get_global_grad_norm()
        norm = float("nan") if found is None else float(found)
        if norm != norm or norm == float("inf"):
            raise ArithmeticError(f"gradient norm is {norm}: a loss of this step is not finite")
        return norm

    def _summed(self, sums: dict[str, float]) -> dict[str, float]:
        values = torch.tensor(list(sums.values()), dtype=torch.float64, device=self.engine.device)
        torch.distributed.all_reduce(values)
        return dict(zip(sums, values.tolist(), strict=True))

    def _joined(self, results: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        parts: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(parts, results)
        return {i: value for part in parts for i, value in part.items()}
