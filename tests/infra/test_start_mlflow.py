"""How the container of MLflow starts."""

import configparser
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPT = Path(__file__).parents[2] / "infra" / "image" / "start_mlflow.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("start_mlflow", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Store:
    """As much of an S3 client as is used."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def list_buckets(self) -> dict[str, Any]:
        return {"Buckets": [{"Name": name} for name in self.names]}

    def create_bucket(self, Bucket: str) -> None:
        self.names.append(Bucket)


def test_the_file_of_accounts_gives_back_a_password_with_percent_signs():
    url = "postgresql+psycopg2://mlflow:a%40b@postgres/mlflow"
    parser = configparser.ConfigParser()
    parser.read_string(script().accounts_file(url))
    assert parser["mlflow"]["database_uri"] == url
    assert "admin_password" not in parser["mlflow"]  # that one comes from the environment


def test_the_bucket_is_made_once():
    store = Store("other")
    assert script().make_bucket(store, "mlflow")
    assert not script().make_bucket(store, "mlflow")
    assert store.names == ["other", "mlflow"]


def test_an_empty_secret_counts_as_missing():
    module = script()
    env = dict.fromkeys(module.NEEDED, "x")
    assert module.missing(env) == []
    assert module.missing({**env, "MLFLOW_AUTH_ADMIN_PASSWORD": ""}) == [
        "MLFLOW_AUTH_ADMIN_PASSWORD"
    ]


def test_the_command_line_shows_no_secret_and_asks_who_calls():
    module = script()
    env = {name: f"secret-{name}" for name in module.NEEDED}
    env |= {"MLFLOW_BUCKET": "mlflow", "MLFLOW_ALLOWED_HOSTS": "mlflow:5000"}
    line = module.command(env)
    assert "--app-name=basic-auth" in line and "--allowed-hosts=mlflow:5000" in line
    assert not any("secret-" in part for part in line)
