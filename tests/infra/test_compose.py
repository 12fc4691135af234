"""The stack of infra/compose.yaml: valid, shut to the outside, without a secret in a file."""

import importlib.resources
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conf.load import clusters

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
FILES = (INFRA / "compose.yaml", INFRA / "compose.gpu.yaml")
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|AUTH_STRING|ACCESS_KEY|DATABASE.*URL")
NO_SECRET = {"RAY_AUTH_MODE"}


def compose(path: Path = FILES[0]) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


SERVICES = compose()["services"]


def client() -> list[str]:
    """The command of a Compose client of version 2, or a skip."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, text=True)
            if re.search(r"\bv?2\.\d+\.\d+", done.stdout):
                return command
    pytest.skip("no client of Docker Compose 2 is installed")


def variables() -> list[str]:
    """What .env.example asks for."""
    text = (INFRA / ".env.example").read_text(encoding="utf-8")
    return re.findall(r"^([A-Z0-9_]+)=$", text, flags=re.MULTILINE)


def config(env_file: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    named = [part for path in files for part in ("--file", str(path))]
    command = [*client(), "--env-file", str(env_file), *named, "config", "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True)


def filled(tmp_path: Path) -> Path:
    env = tmp_path / "env"
    env.write_text("".join(f"{name}=value-of-{name}\n" for name in variables()))
    return env


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_files_satisfy_the_schema_of_the_compose_specification(path):
    vendor = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((vendor / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(compose(path), schema)


def test_docker_compose_accepts_the_stack(tmp_path):
    done = config(filled(tmp_path), FILES[0])
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(SERVICES)


def test_docker_compose_merges_the_gpu_overlay(tmp_path):
    done = config(filled(tmp_path), *FILES)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    for name in ("ray-head", "ray-worker", "worker"):
        assert services[name]["image"].startswith("mempo-cuda:")
        assert services[name]["build"]["target"] == "cuda"
        assert services[name]["volumes"]  # what the overlay does not say stays
    assert services["worker"]["environment"]["MEMPO_CLUSTER"] == "compose-gpu"
    assert services["worker"]["environment"]["RAY_AUTH_TOKEN"] == "value-of-RAY_AUTH_TOKEN"


def test_docker_compose_stops_at_a_missing_secret(tmp_path):
    empty = tmp_path / "env"
    empty.write_text("")
    assert "set it in infra/.env" in config(empty, FILES[0]).stderr


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_this_machine_alone(name):
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_restarts(name):
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_are_awaited_until_they_are_healthy(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        assert how == {"condition": "service_healthy"}


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name):
    assert re.search(r":\d+\.\d+", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_named_volumes_and_networks_exist(name):
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        assert (INFRA / source).exists() if source.startswith("./") else source in volumes()
    assert set(SERVICES[name]["networks"]) <= set(compose()["networks"])


def volumes() -> set[str]:
    return set(compose()["volumes"])


def test_nothing_but_mlflow_reaches_the_object_store():
    """Beside S3 it opens ports that ask for no key."""
    assert {n for n, s in SERVICES.items() if "objects" in s["networks"]} == {"objects", "mlflow"}
    assert compose()["networks"]["objects"]["internal"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_secrets_come_from_the_environment_and_have_no_default(path):
    for service in compose(path)["services"].values():
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key) and key not in NO_SECRET:
                assert re.search(r"\$\{[A-Z0-9_]+:\?set it in infra/\.env\}", value), key
                assert ":-" not in value


def test_the_example_names_every_secret_and_gives_none():
    text = FILES[0].read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{([A-Z0-9_]+):\?", text)) == set(variables())
    example = (INFRA / ".env.example").read_text(encoding="utf-8")
    assert not re.search(r"^[A-Z0-9_]+=.", example, flags=re.MULTILINE)
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_authentication_is_switched_on_at_each_service():
    assert "PREFECT_SERVER_API_AUTH_STRING" in SERVICES["prefect"]["environment"]
    assert "MLFLOW_AUTH_ADMIN_PASSWORD" in SERVICES["mlflow"]["environment"]
    assert "mlflow:5000" in SERVICES["mlflow"]["environment"]["MLFLOW_ALLOWED_HOSTS"]
    for name in ("ray-head", "ray-worker", "worker"):
        assert SERVICES[name]["environment"]["RAY_AUTH_MODE"] == "token"
        assert SERVICES[name]["environment"]["PREFECT_API_AUTH_STRING"]


def test_the_worker_and_the_nodes_of_ray_share_the_runs():
    for name in ("ray-head", "ray-worker", "worker"):
        assert "mempo-home:/data" in SERVICES[name]["volumes"]
        assert SERVICES[name]["environment"]["MEMPO_HOME"] == "/data"


def test_the_clusters_that_the_workers_register_ship():
    for path in FILES:
        name = compose(path)["services"]["worker"]["environment"]["MEMPO_CLUSTER"]
        assert name in clusters()
        cluster = yaml.safe_load((ROOT / "conf" / "cluster" / f"{name}.yaml").read_text())
        assert cluster["address"] == SERVICES["worker"]["environment"]["MEMPO_RAY_ADDRESS"]
        assert cluster["tracking"]["uri"] == "http://mlflow:5000"
