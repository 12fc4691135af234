"""A home of their own for tests that run whole flows: a Prefect server, a Ray, a cold start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from conf.load import load


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory):
    """A Prefect server and a Ray for all tests of a file, and a store of its own."""
    from tasks.prefect_server import prefect_server
    from tasks.ray_cluster import connect_ray, shutdown_ray

    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPO_HOME", str(folder))
        patch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
        (folder / "code").mkdir()
        patch.syspath_prepend(folder / "code")  # before Ray starts; workers must look there too
        with prefect_server(lambda _: None):
            connect_ray(load("test", overrides=["cluster.cpus=2"]).cluster)
            try:
                yield folder
            finally:
                shutdown_ray()


@pytest.fixture(scope="module")
def cold(home: Path):
    """A cold start of a few steps: its result, and experiments that begin from it."""
    from flows.sft import sft

    result = sft(load("test", overrides=["cluster.cpus=2"], seed=3))
    return SimpleNamespace(result=result, start=f"policy.model={result.checkpoint}")
