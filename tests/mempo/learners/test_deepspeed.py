"""DeepSpeed on one rank and on two against the torch learner: the same updates."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mempo.learners.torch_learner import TorchLearner
from mempo.policies.lora import add_adapters

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
STAGES = ["zero0", "zero1", "zero2", "zero3"]


@pytest.fixture(scope="module")
def script() -> Any:
    """ranks.py as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("ranks", HERE / "ranks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder: Path, ranks: int, source: str = "") -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    folder.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), str(rank), str(ranks), port, folder, source],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=600)[0].decode() for process in processes]
    assert not any(process.returncode for process in processes), "\n".join(said)[-4000:]
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("ranks") / "two", 2)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("ranks") / "one", 1)


@pytest.fixture(scope="module")
def plain(script: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the torch learner finds."""
    return alone(script, tmp_path_factory.mktemp("plain") / "checkpoint")


def alone(script: Any, folder: Path, *, lora: int = 0, tied: bool = True) -> dict[str, Any]:
    model, codec = script.policy(tied=tied)
    if lora:
        model = add_adapters(model, lora, seed=0)
    settings = script.SETTINGS.model_copy(update={"lora_rank": lora})
    learner = TorchLearner(model, codec, settings, reference=True, previous=True)
    gradients: dict[str, Any] = {}
    step = learner.optimizer.step

    def catch(lr: float) -> float:
        for n, p in zip(learner.optimizer.names, learner.optimizer.parameters, strict=True):
            gradients.setdefault(f"gradient/{n}", p.grad.numpy().copy())
        return step(lr)

    learner.optimizer.step = catch  # type: ignore[method-assign]
    found = script.lives(learner, folder, None, script.LOSS if tied else script.PLAIN_LOSS)
    weights = {f"weight/{n}": t.detach().numpy() for n, t in learner.weights().items()}
    return {**found, **gradients, **weights, "folder": folder}


def check(found: Any, expected: dict[str, Any], names: str = "") -> None:
    """Equal to 1e-5 of each tensor's largest value; weights, after six steps of Adam, to 1e-4.

    Of weights those are compared whose first gradient was none of rounding: Adam divides a gradient
    by its own size, so where it is mathematically zero (biases of keys) rounding moves the weight.
    """
    compared = 0
    for key, value in expected.items():
        if key == "folder" or not key.startswith(names):
            continue
        far, scale = np.abs(found[key] - value), max(np.abs(value).max(), 1e-3)
        bound = 1e-4 if key.startswith("weight/") else 1e-5
        if key.startswith("weight/"):
            gradient = np.abs(expected.get(key.replace("weight/", "gradient/"), np.ones(far.shape)))
            far = far[gradient > 0.01 * gradient.max()]
            if gradient.max() < 1e-6:
                continue
        assert far.max() / scale < bound, key
        compared += 1
    assert compared


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", ["one", "two"])
def test_fault_28_the_same_loss_gradients_and_weights_whatever_the_split(
    ranks: str, stage: str, plain: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(ranks)
    for file in sorted(folder.glob(f"{stage}-*.npz")):
        check(np.load(file), plain, "" if file.stem.endswith("-0") else "gradient")
        check(np.load(file), plain, "metric")
    assert len(list(folder.glob(f"{stage}-*.npz"))) == {"one": 1, "two": 2}[ranks]


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_a_head_of_its_own_that_zero_3_cuts_up_is_trained_alike(
    ranks: str, script: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    everything = alone(script, tmp_path / "alone", tied=False)
    # Of weights the head alone: elsewhere Adam makes more of the rounding of small gradients.
    head = "weight/lm_head.weight"
    expected = {k: v for k, v in everything.items() if k == head or not k.startswith("weight/")}
    assert {head, "gradient/lm_head.weight"} < set(expected)
    for file in sorted(request.getfixturevalue(ranks).glob("untied-*.npz")):
        check(np.load(file), expected, "" if file.stem.endswith("-0") else "gradient")


def test_a_checkpoint_of_two_ranks_goes_on_on_one_on_three_and_in_the_torch_learner(
    script: Any, two: Path, tmp_path: Path
) -> None:
    after = {
        stage: dict(np.load(two / f"{stage}-0.npz"))
        for stage in [*STAGES, "bf16", "lora", "untied"]
    }
    for ranks in (1, 3):  # 3 divide no parameter
        again = run(tmp_path / str(ranks), ranks, str(two))
        for stage, expected in after.items():
            found = np.load(again / f"{stage}-0.npz")
            if stage == "bf16":  # Adam makes much of the rounding of its gradients, so before it
                gap = np.abs(found["logprobs"] - expected["logprobs"])
                assert gap.max() < 1e-3
                continue
            for name in ("logprobs", "last", "weight"):
                check(found, expected, name)
    for stage in STAGES:
        model, codec = script.policy()
        learner = TorchLearner(model, codec, script.SETTINGS, reference=True, previous=True)
        script.lives(learner, tmp_path, two / stage)
        check(
            {f"weight/{n}": p.detach().numpy() for n, p in model.named_parameters()},
            after[stage],
            "weight",
        )


def test_a_checkpoint_of_the_torch_learner_goes_on_on_two_ranks(
    script: Any, plain: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for stage in [*STAGES, "bf16"]:
        (source / stage).symlink_to(plain["folder"])
    (source / "lora").symlink_to(alone(script, tmp_path / "lora", lora=script.LORA)["folder"])
    (source / "untied").symlink_to(alone(script, tmp_path / "untied", tied=False)["folder"])
    again = run(tmp_path / "again", 2, str(source))
    for stage in STAGES:
        check(np.load(again / f"{stage}-0.npz"), plain, "weight")


def test_adapters_are_trained_alike_and_merged_where_they_leave(
    script: Any, two: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    expected = alone(script, tmp_path / "alone", lora=script.LORA)
    found = np.load(two / "lora-1.npz")
    assert all(".lora_" in key for key in expected if key.startswith("gradient/"))
    # Merged weights have no gradient of their own that would tell rounding from learning; the last
    # log-probs, of the third update's weights, speak for them.
    check(found, {k: v for k, v in expected.items() if not k.startswith("weight/")})
    # A checkpoint loads without peft, and says what the adapters said.
    merged: Any = AutoModelForCausalLM.from_pretrained(two / "lora", dtype=torch.float32)
    learner = TorchLearner(merged, script.policy()[1], script.SETTINGS, reference=True)
    rows = [r.row for r in script.batch(learner, 3)]
    said = np.concatenate(learner.logprobs(rows)) - 0.1  # as in `batch`
    assert np.abs(said - found["logprobs"]).max() < 1e-4


def test_bfloat16_trains_float32_masters(two: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(two / "bf16" / "optimizer.state")
    masters = {n: t for n, t in state.items() if n.endswith(".master")}
    assert masters and {t.dtype for t in masters.values()} == {torch.float32}
    assert any((t != t.bfloat16().float()).any() for t in masters.values())


def test_weights_before_an_update_are_kept_at_every_stage(one: Path, two: Path) -> None:
    for folder in (one, two):
        for name in [*STAGES, "bf16", "lora", "untied"]:
            for file in folder.glob(f"{name}-*.npz"):
                found = np.load(file)
                gap = np.abs(found["kept"] - 0.1 - found["logprobs"])  # as in `batch`
                assert gap.max() < 1e-5, file
