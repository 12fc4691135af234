import os
import sys

import pytest

from mempo.config import Cluster
from tasks.environment import available_cores, pick_threads, worker_env


def test_workers_get_addresses_and_threads_but_no_run_of_the_shell(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://here/api")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
    monkeypatch.setenv("MLFLOW_RUN_ID", "somebody's")
    monkeypatch.setenv("MEMPO_HOME", "/shared/runs")
    monkeypatch.setenv("SOME_SECRET", "s")
    env = worker_env(Cluster(threads=3))
    assert env["PREFECT_API_URL"] == "http://here/api"
    assert env["MEMPO_HOME"] == "/shared/runs"
    assert "MLFLOW_TRACKING_TOKEN" not in env  # Ray would log it
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    assert "MLFLOW_RUN_ID" not in env and "SOME_SECRET" not in env
    assert all(isinstance(value, str) for value in env.values())


def test_workers_of_a_local_ray_find_the_modules_that_this_process_finds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/one", str(tmp_path), "two", "/one"])
    expected = os.pathsep.join([str(tmp_path), "/one", str(tmp_path / "two")])
    assert worker_env(Cluster())["PYTHONPATH"] == expected
    assert "PYTHONPATH" not in worker_env(Cluster(address="head:6379"))  # it has its own folders


@pytest.mark.parametrize(
    ("cluster", "threads"),
    [
        (Cluster(threads=5, cpus=2), 5),
        (Cluster(cpus=8), 8),
        (Cluster(cpus=8, parallel=3), 2),
        (Cluster(cpus=2, parallel=4), 1),
    ],
)
def test_threads_are_the_cores_shared_by_the_runs_side_by_side(cluster, threads):
    assert pick_threads(cluster) == threads


def test_threads_of_this_machine_are_its_available_cores():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert pick_threads(Cluster()) == available_cores()
