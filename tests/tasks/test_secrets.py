import pytest

from mempo.config import Cluster
from tasks.environment import worker_env
from tasks.secrets import is_secret

SECRETS = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MEMPO_RETRIEVER_TOKEN",
    "MEMPO_DATABASE_URL",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_CLIENT_CUSTOM_HEADERS",
)
OPEN = ("MEMPO_HOME", "PREFECT_API_URL", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_URI")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name(name):
    assert is_secret(name, "x")


@pytest.mark.parametrize("name", OPEN)
def test_what_is_open_is_one_only_with_a_password_in_it(name):
    assert not is_secret(name, "http://host:5000")
    assert is_secret(name, "http://me:hunter2@host:5000")


@pytest.mark.parametrize("address", ["", "head:6379"])
def test_workers_are_told_no_secret(monkeypatch, address):
    for name in (*SECRETS, *OPEN):
        monkeypatch.setenv(name, "http://host")
    told = worker_env(Cluster(address=address)).keys()
    assert not told & set(SECRETS) and told >= set(OPEN)


@pytest.mark.services
@pytest.mark.filterwarnings("default")  # Ray's own
def test_workers_of_a_local_ray_inherit_what_they_are_not_told(monkeypatch):
    from tasks.ray_cluster import connect_ray, shutdown_ray

    monkeypatch.setenv("MEMPO_RETRIEVER_TOKEN", "hunter2")
    connect_ray(Cluster(cpus=1))
    try:
        import os

        import ray

        seen = ray.remote(num_cpus=0)(lambda: os.environ.get("MEMPO_RETRIEVER_TOKEN"))
        assert ray.get(seen.remote()) == "hunter2"
    finally:
        shutdown_ray()
