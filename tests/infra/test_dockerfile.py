"""The images: built from the lock, by nobody with rights, with nothing that the builder lacks."""

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "infra" / "Dockerfile"
TARGETS = ("server", "cpu", "cuda")


def instructions() -> list[tuple[str, str]]:
    """(INSTRUCTION, rest) with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage -> its instructions, after those of the stage that it is built from."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            source, name = rest.split(" AS ")
            found[name] = [*found.get(source, [])]
        found[name].append((word, rest))
    return found


def test_every_target_is_there_and_ends_as_a_user_without_rights():
    for target in TARGETS:
        users = [rest for word, rest in stages()[target] if word == "USER"]
        assert users[-1] == "1000:1000"


def test_base_images_are_pinned_to_a_patch_version():
    for word, rest in instructions():
        if word == "FROM" and rest.split()[0] not in stages():
            assert re.search(r":\d+\.\d+\.\d+-", rest), rest


def test_every_install_is_from_a_lock_or_installs_nothing_else():
    for word, rest in instructions():
        if word == "RUN" and "pip install" in rest:
            assert "--constraint" in rest or "--no-deps" in rest, rest


def test_everything_that_is_copied_exists_and_reaches_the_builder():
    """.dockerignore shuts out all but what it names."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    for word, rest in instructions():
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch(source, p) or source.startswith(p + "/") for p in let_in), source


def test_the_packages_are_those_of_the_project():
    copied = {rest.split()[0] for word, rest in stages()["cpu"] if word == "COPY"}
    assert {"conf", "flows", "mempo", "tasks"} <= copied


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
