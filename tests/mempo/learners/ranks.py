"""One rank of a DeepSpeed learner, for test_deepspeed.py: `ranks.py RANK RANKS PORT FOLDER FROM`.

For each ZeRO stage it updates thrice, saves, and updates once more; FROM names the folder of
another such run, whose checkpoints it goes on from in place of the first three updates. What it
finds is in FOLDER/<stage>-<rank>.npz.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo.config import Environment, Learner, Loss
from mempo.environments.atlas import AtlasWorld
from mempo.learners.deepspeed_learner import DeepSpeedLearner, join_ranks
from mempo.learners.loss import token_weights
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.policies.codec import Codec
from mempo.policies.lora import add_adapters
from mempo.policies.tiny import tiny_model, tiny_tokenizer

SETTINGS = Learner(lr=1e-2, grad_clip=0.5, micro_tokens=14)
LOSS, PLAIN_LOSS = Loss(kl=0.1, entropy=0.01), Loss(kl=0.1)
# Else weights as small as these stay whole after the first step.
CUT = '{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}'
STAGES = {
    **{f"zero{n}": f'{{"zero_optimization": {{"stage": {n}}}}}' for n in range(3)},
    "zero3": CUT,
    "bf16": '{"zero_optimization": {"stage": 2}}',
    "lora": CUT,
    "untied": CUT,  # and without an entropy bonus
}
LORA = 2


def policy(*, tied: bool = True) -> tuple[Any, Codec]:
    world = AtlasWorld(Environment(entities=10, attributes=4, values=5, reply_facts=3))
    codec = Codec(tiny_tokenizer(world.words()))
    model = tiny_model(len(codec.tokenizer), 0, width=64)
    with torch.no_grad():
        model.model.norm.weight.fill_(1.0)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())
    return model, codec


def batch(learner: TorchLearner, step: int) -> list[TrainRow]:
    """Five rows of two prompts: three micro-batches, which two ranks do not divide."""
    rng = np.random.default_rng(step)
    prompts = rng.integers(3, 70, (2, 3)).tolist()
    rows = [
        sampled_row(prompts[n > 4], rng.integers(3, 70, n).tolist(), n) for n in (1, 3, 4, 5, 9)
    ]
    old, ref = learner.logprobs(rows), learner.logprobs(rows, reference=True)
    weights = token_weights([r.targets for r in rows], [0, 0, 1, 2, 2])
    return [
        TrainRow(row, rng.normal(size=row.targets), old[i] - 0.1, float(weights[i]), ref[i])
        for i, row in enumerate(rows)
    ]


def lives(
    learner: TorchLearner, folder: Path, checkpoint: Path | None, loss: Loss = LOSS
) -> dict[str, Any]:
    """What an update finds, gradients before clipping, the weights in the end."""
    found: dict[str, Any] = {}
    if checkpoint is None:
        for step in range(3):
            metrics = learner.update(batch(learner, step), loss)
            if step == 0:
                found |= {f"metric/{name}": value for name, value in metrics.items()}
        folder.mkdir(parents=True, exist_ok=True)
        learner.save(folder)
    else:
        learner.restore(checkpoint)
    rows = batch(learner, 3)
    found["logprobs"] = np.concatenate([r.old_logprobs for r in rows if r.old_logprobs is not None])
    learner.keep()
    found["last"] = np.array(sorted(learner.update(rows, loss).items()), dtype=object)[:, 1]
    kept = learner.logprobs([r.row for r in rows], previous=True)
    found["kept"] = np.concatenate(kept)
    found["last"] = found["last"].astype(float)
    found["supervised"] = learner.supervise([r.row for r in rows], 1e-3)
    found["norm"] = learner.descend([r.row for r in rows], [0.1, 0, -0.2, 0.3, 0])
    found["tokens"] = learner.tokens
    return found


def main(rank: int, ranks: int, port: str, folder: Path, source: str) -> None:
    from deepspeed.utils import safe_get_full_grad

    def whole(p: torch.nn.Parameter) -> np.ndarray:
        gradient = safe_get_full_grad(p)
        assert gradient is not None
        return gradient.float().numpy().copy()

    torch.set_num_threads(1)
    join_ranks(rank, ranks, f"127.0.0.1:{port}")
    model, codec = policy()
    for name, zero in STAGES.items():
        copy = deepcopy(model).to(torch.bfloat16 if name == "bf16" else torch.float32)
        if name == "untied":
            copy, _ = policy(tied=False)
        settings = SETTINGS.model_copy(update={"deepspeed": zero})
        if name == "lora":
            settings = settings.model_copy(update={"lora_rank": LORA})
            copy = add_adapters(copy, LORA, seed=0)
        learner = DeepSpeedLearner(copy, codec, settings, reference=True, previous=True)
        gradients: dict[str, np.ndarray] = {}
        step = learner._step

        def catch(lr: float, learner=learner, gradients=gradients, step=step) -> float:
            for n, p in zip(learner.names, learner.trained, strict=True):
                if f"gradient/{n}" not in gradients:
                    gradients[f"gradient/{n}"] = whole(p)
            return step(lr)

        learner._step = catch
        found = lives(
            learner,
            folder / name,
            Path(source) / name if source else None,
            PLAIN_LOSS if name == "untied" else LOSS,
        )
        weights = {f"weight/{n}": t.float().numpy() for n, t in learner.weights().items()}
        everything: dict[str, Any] = {**found, **gradients, **weights}
        np.savez(folder / f"{name}-{rank}.npz", **everything)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5])
