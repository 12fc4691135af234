"""Scoring and training of the library on one GPU: speed, memory, and agreement with float32 on CPU.

    python infra/gpu_check.py            a Qwen2.5-shaped model of 0.5B parameters, minutes
    python infra/gpu_check.py --tiny     the same on whatever is there, a model of no size

Needs torch, transformers and pydantic alone, and downloads nothing: the weights are random. Prints
a line a measurement, then JSON. `share_of_peak` is of the dense bfloat16 peak of a chip whose name
is known, `share_of_matmul` of what a large matrix product reaches on this very machine. A forward
pass counts 2 operations per parameter and token, a training step 6, the head on trained tokens
alone; attention is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from mempo.config import Learner, Loss
from mempo.learners.packing import sampled_row
from mempo.learners.torch_learner import TorchLearner, TrainRow
from mempo.types import Row

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "RTX 4090": 165}  # data sheets
CODEC: Any = SimpleNamespace(pad_id=0)  # all that a learner asks of it


def model(tiny: bool, dtype: torch.dtype, device: str) -> Any:
    """Qwen2.5-0.5B's shape with random weights, the same for every dtype and device."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151_936,
    }  # fmt: skip
    if tiny:
        shape = {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512,
        }  # fmt: skip
    config = Qwen2Config(**shape, max_position_embeddings=4096, tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    return Qwen2ForCausalLM(config).to(device, dtype).eval()


def rows(count: int, prompt: int, output: int, vocabulary: int) -> list[Row]:
    rng = np.random.default_rng(0)
    return [
        sampled_row(
            rng.integers(vocabulary, size=prompt).tolist(),
            rng.integers(vocabulary, size=output).tolist(),
            output,
        )
        for _ in range(count)
    ]


def timed(device: str, work: Any, repeat: int = 3) -> float:
    """Seconds of the fastest of `repeat` calls after one that warms up."""
    best = float("inf")
    for i in range(repeat + 1):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if i:
            best = min(best, time.perf_counter() - begin)
    return best


def matmul_flops(device: str, tiny: bool) -> float:
    """Operations a second of a large bfloat16 matrix product."""
    n = 512 if tiny else 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    return 2 * n**3 / timed(device, lambda: a @ a, 5)


def speed(found: dict[str, float], policy: Any, device: str, tiny: bool) -> None:
    """Tokens a second of scoring and of an update, and the memory that they take."""
    count, prompt, output = (2, 24, 8) if tiny else (16, 768, 256)
    vocabulary = policy.config.vocab_size
    settings = Learner(lr=1e-6, micro_tokens=256 if tiny else 8192)
    learner = TorchLearner(policy, CODEC, settings)
    batch = rows(count, prompt, output, vocabulary)
    old = learner.logprobs(batch)
    trained = [
        TrainRow(row, np.ones(row.targets), o, 1 / (count * output))
        for row, o in zip(batch, old, strict=True)
    ]
    tokens, head = count * (prompt + output), policy.get_output_embeddings().weight.numel()
    body = sum(p.numel() for p in policy.parameters()) - head  # it is tied, so counted once
    operations = body * tokens + head * count * output
    rate, name = (
        matmul_flops(device, tiny),
        torch.cuda.get_device_name() if device == "cuda" else "",
    )
    peaks = [t * 1e12 for chip, t in PEAK_TFLOPS.items() if chip in name]
    for what, factor, work in (
        ("score", 2, lambda: learner.logprobs(batch)),
        ("train", 6, lambda: learner.update(trained, Loss())),
    ):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = timed(device, work)
        flops = factor * operations / seconds
        found[f"{what}_tokens_per_s"] = tokens / seconds
        found |= {f"{what}_share_of_peak": flops / peak for peak in peaks[:1]}
        found[f"{what}_share_of_matmul"] = flops / rate
        if device == "cuda":
            found[f"{what}_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30


def agreement(found: dict[str, float], device: str, tiny: bool) -> None:
    """Log-probs on the device against float32 on CPU, and the norm of a float32 gradient."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = TorchLearner(model(tiny, torch.float32, "cpu"), CODEC, Learner())
    batch = rows(2, 48, 16, reference.model.config.vocab_size)
    exact = np.concatenate(reference.logprobs(batch))
    norms: list[float] = []
    for dtype in (torch.float32, torch.bfloat16):
        learner = TorchLearner(model(tiny, dtype, device), CODEC, Learner())
        gap = np.abs(np.concatenate(learner.logprobs(batch)) - exact)
        name = str(dtype).removeprefix("torch.")
        found[f"{name}_max_diff"], found[f"{name}_mean_diff"] = float(gap.max()), float(gap.mean())
        if dtype == torch.float32:
            norms = [one.descend(batch, [0.1, -0.2]) for one in (learner, reference)]
    found["float32_gradient_norm_gap"] = abs(norms[0] / norms[1] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a model of no size, for a dry run")
    tiny = parser.parse_args().tiny
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not tiny:
        raise SystemExit("there is no GPU that torch can use; --tiny runs a dry run on the CPU")
    found: dict[str, float] = {}
    agreement(found, device, tiny)
    speed(found, model(tiny, torch.bfloat16, device), device, tiny)
    chip = torch.cuda.get_device_name() if device == "cuda" else "CPU, a dry run"
    print(f"{chip}, torch {torch.__version__}")
    for name, value in found.items():
        print(f"{name:24} {value:.4g}")
    if found["float32_max_diff"] > 1e-3 or found["float32_gradient_norm_gap"] > 1e-3:
        raise SystemExit("float32 on this device does not agree with float32 on CPU")
    print(json.dumps({"device": chip, **found}))


if __name__ == "__main__":
    main()
