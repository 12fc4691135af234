"""What a run depends on beside its settings: data and models by sha256, packages by version."""

from __future__ import annotations

import platform
from functools import cache
from hashlib import file_digest
from importlib.metadata import distributions
from pathlib import Path

from mempo.config import Experiment
from mempo.environments.datasets import data_path
from mempo.policies.shipped import model_path
from tasks import store


@cache  # what a process runs does not change, and a sweep asks for each of its runs
def packages() -> str:
    """Python and every installed package, a line `name==version` each."""
    found = {"python": platform.python_version()}
    for package in distributions():  # of two of a name Python imports the first
        found.setdefault((package.name or "").lower().replace("_", "-"), package.version)
    return "".join(f"{name}=={found[name]}\n" for name in sorted(found) if name)


def inputs(experiment: Experiment) -> dict[str, str]:
    """sha256 of every file and folder that the run reads, by the setting that names it.

    What a hub or a search server answers is not here, and has no fingerprint.
    """
    e = experiment.environment
    files = {}
    if e.name == "dataset":
        files = {
            "environment.questions": e.questions,
            "environment.test_questions": e.test_questions,
            "environment.corpus": e.corpus,
        }
    found = {}
    for setting, name in files.items():
        if name and (path := data_path(name)).is_file():
            with path.open("rb") as stream:
                found[setting] = file_digest(stream, "sha256").hexdigest()
    models = {
        "policy.model": experiment.policy.model,
        "agent.embedding_model": experiment.agent.embedding_model,
    }
    for setting, name in models.items():
        folder = Path(model_path(name)) if name else Path()
        if name and folder.is_dir():
            _, found[setting] = store.folder_digest(folder)
    return found
