"""The lock: everything that pyproject.toml asks for is pinned, within its range."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The lock of an image -> the extras that it is for; both hold the base, too.
LOCKS = {
    "constraints.txt": ("postgres", "test"),
    "constraints-cuda.txt": ("deepspeed", "lora", "postgres", "vllm"),
}


def pins(lock: str) -> dict[str, str]:
    """Package -> version."""
    text = (ROOT / "infra" / lock).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ;]+", line) for line in lines)
    return dict(line.split("==") for line in lines)


def asked_for(extras: tuple[str, ...]) -> list[Requirement]:
    """The base and these extras, with the extras that they name."""
    found = [Requirement(entry) for entry in PROJECT["dependencies"]]
    todo = list(extras)
    while todo:
        for entry in PROJECT["optional-dependencies"][todo.pop()]:
            requirement = Requirement(entry)
            if requirement.name == PROJECT["name"]:
                todo += sorted(requirement.extras)
            else:
                found.append(requirement)
    return found


@pytest.mark.parametrize(("lock", "extras"), LOCKS.items())
def test_every_dependency_is_pinned_within_its_range(lock, extras):
    pinned = pins(lock)
    for requirement in asked_for(extras):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name}: make lock"
        assert requirement.specifier.contains(pinned[name], prereleases=True), requirement


def test_what_the_servers_are_made_of_is_pinned():
    for line in (ROOT / "infra" / "server.in").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert canonicalize_name(Requirement(line).name) in pins("constraints.txt")


def test_services_and_flows_are_of_one_version_on_cpu_and_gpu():
    """A client of Prefect, Ray or MLflow is not older or newer than its server."""
    cpu, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    for name in ("prefect", "prefect-ray", "ray", "mlflow", "torch", "transformers", "deepspeed"):
        assert cpu[name] == cuda[name]


def test_what_make_test_removes_again_is_not_pinned():
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pins("constraints.txt"))


def test_make_installs_from_the_lock():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if re.search(r"pip install .* -e ", line)]
    assert len(installs) == 2
    assert all("-c $(CONSTRAINTS)" in line for line in installs)
    assert "$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)" in makefile
