"""What surrounds a run: found wanting before anything starts, and freed whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.load import load
from flows.connecting import connected, services

pytestmark = pytest.mark.filterwarnings("default")  # Prefect, Ray and MLflow warn


@pytest.fixture
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


@pytest.mark.parametrize("around", [services, connected])
def test_what_a_check_refuses_starts_no_server_and_no_ray(empty_home, around):
    import ray

    good, bad = load("test"), load("test", overrides=["policy.model=models/none"])
    with pytest.raises(ValueError, match=r"policy\.model"), around([good, bad]):
        pytest.fail("the block was entered")
    assert not ray.is_initialized()
    assert not (empty_home / "prefect").exists() and "PREFECT_API_URL" not in os.environ


@pytest.mark.services
def test_a_run_that_fails_leaves_no_server_and_no_ray(empty_home):
    import ray

    from tasks.supervisor import answers

    url = ""
    with pytest.raises(ZeroDivisionError), services([load("test", overrides=["cluster.cpus=1"])]):
        url = os.environ["PREFECT_API_URL"]
        assert answers(f"{url}/health") and ray.is_initialized()
        # What is connected already is used as it is: this experiment would fail its checks.
        with connected([load("test", overrides=["policy.model=models/none"])]):
            assert ray.is_initialized()
        assert ray.is_initialized()
        raise ZeroDivisionError
    assert not ray.is_initialized() and not answers(f"{url}/health")
    assert "PREFECT_API_URL" not in os.environ
