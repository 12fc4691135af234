"""What is packed, what the tools are told, and what the texts promise."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def targets() -> dict[str, list[str]]:
    """Make target -> the lines of its recipe."""
    found: dict[str, list[str]] = {}
    target = ""
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([a-zA-Z$()/.-]+):(?!=)", line):
            target = match[1]
            found[target] = []
        elif line.startswith("\t"):
            found[target].append(line.strip())
    return found


def test_every_file_that_the_packages_read_is_packed():
    """Templates, presets and built-in data are found by a pattern of package-data."""
    packed = PROJECT["tool"]["setuptools"]["package-data"]
    for package in ("conf", "flows", "mempo", "tasks"):
        for path in (ROOT / package).rglob("*"):
            name = path.relative_to(ROOT / package)
            hidden = any(part.startswith((".", "__")) for part in name.parts)
            if path.is_dir() or hidden or path.suffix == ".py":
                continue
            patterns = packed.get(package, [])
            assert any(fnmatch(str(name), p.replace("**/", "*")) for p in patterns), name


def test_torch_is_asked_for_by_one_version_and_nothing_brings_torchvision():
    names = [re.split(r"[<>=\[ ]", entry)[0] for entry in PROJECT["project"]["dependencies"]]
    assert "torch==2.13.0" in PROJECT["project"]["dependencies"]
    assert not {"torchvision", "torchaudio", "vllm"} & set(names)
    assert len(set(names)) == len(names)


def test_the_targets_that_people_use_are_there():
    assert set(targets()) >= {"demo", "test", "lint", "ui", "clean"}
    demo = "\n".join(targets()["demo"])
    assert "mempo ablate demo" in demo
    assert re.search(r"mempo sft --preset \w+ .*--out models/atlas-sft-scratch", demo)
    assert "--set policy.model=models/atlas-sft-scratch" in demo


def test_cleaning_keeps_runs_and_models():
    recipe = " ".join(targets()["clean"])
    assert not re.search(r"\b(runs|models)\b", recipe)


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", script], check=True)


def test_pre_commit_runs_the_commands_of_make_lint():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    lint = [line.replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in targets()["lint"]]
    assert hooks == lint


def test_no_file_names_a_place_of_one_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # an unpacked archive
        return
    place = re.compile(r"(?<![\w.])/(?:work|home/\w+|tmp/bash_jobs)/")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml", "") and path.is_file():
            found = place.search(path.read_text(encoding="utf-8", errors="ignore"))
            assert name == "tests/test_shipped_files.py" or not found, name
