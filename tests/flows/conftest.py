"""A home for tests that run whole flows: a Prefect server, a Ray, a cold start.

Starting them takes longer than most of these tests, so they live as long as one test after another
asks for them, and files whose tests do come first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from conf.load import load

_shared = ExitStack()
_made: dict[str, object] = {}
_files: set[Path] = set()  # whose tests ask for `home`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _files.update(item.path for item in items if "home" in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: item.path not in _files)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path not in _files:
        _made.clear()
        _shared.close()


@pytest.fixture
def own_environment() -> Iterator[None]:
    """For tests of commands, which set defaults in the environment of their process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A Prefect server, a Ray and a store for all tests of flows that want no more than that."""
    if "home" not in _made:
        folder = tmp_path_factory.mktemp("home")
        _shared.enter_context(_at_home(folder))
        _made["home"] = folder
    return _made["home"]


@contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    from tasks.prefect_server import prefect_server
    from tasks.ray_cluster import connect_ray, shutdown_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPO_HOME", str(folder))
        patch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
        (folder / "code").mkdir()
        patch.syspath_prepend(folder / "code")  # before Ray starts; workers must look there too
        with prefect_server(lambda _: None):
            connect_ray(load("test", overrides=["cluster.cpus=2"]).cluster)
            try:
                yield
            finally:
                shutdown_ray()


@pytest.fixture(scope="module")
def cold(home: Path) -> object:
    """A cold start of a few steps: its result, and experiments that begin from it."""
    from flows.sft import sft

    if "cold" not in _made:
        result = sft(load("test", overrides=["cluster.cpus=2"], seed=3))
        _made["cold"] = SimpleNamespace(result=result, start=f"policy.model={result.checkpoint}")
    return _made["cold"]
