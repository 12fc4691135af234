"""The manifests of infra/kubernetes: valid, pinned, without rights or secrets.

Kubernetes' own kinds are checked against its published schemas, strictly. KubeRay's schema is in no
package, so a RayCluster is checked against models of the fields that are used here, and its pods
against Kubernetes' schema.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "kubernetes"
KUBERNETES = "1.34"
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|AUTH_STRING|ACCESS_KEY|DATABASE.*URL")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Template(Strict):
    spec: dict[str, Any]


class HeadGroup(Strict):
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    rayStartParams: dict[str, str]
    template: Template


class WorkerGroup(Strict):
    groupName: str
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)
    maxReplicas: int = Field(ge=0)
    rayStartParams: dict[str, str]
    template: Template


class RayClusterSpec(Strict):
    rayVersion: str
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class RayCluster(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: dict[str, str]
    spec: RayClusterSpec


def kustomization() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))


def manifests() -> list[dict[str, Any]]:
    found = []
    for name in kustomization()["resources"]:
        found += list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    return found


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests() if manifest["kind"] == kind]


def ray_cluster() -> RayCluster:
    return RayCluster.model_validate(of_kind("RayCluster")[0])


def pods() -> dict[str, dict[str, Any]]:
    """Name of the first container -> spec of its pod."""
    spec = ray_cluster().spec
    templates = [manifest["spec"]["template"]["spec"] for manifest in of_kind("Deployment")]
    templates += [group.template.spec for group in (spec.headGroupSpec, *spec.workerGroupSpecs)]
    return {template["containers"][0]["name"]: template for template in templates}


def containers() -> dict[str, dict[str, Any]]:
    return {name: pod["containers"][0] for name, pod in pods().items()}


def secrets_of(container: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Variable -> the Secret and key that it is read from."""
    return {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]
        for entry in container["env"]
        if "secretKeyRef" in entry.get("valueFrom", {})
    }


def test_every_manifest_in_the_folder_is_applied():
    assert {path.name for path in FOLDER.glob("*.yaml")} == {
        "kustomization.yaml",
        *kustomization()["resources"],
    }


def test_kubernetes_own_kinds_satisfy_its_schema():
    for manifest in manifests():
        if manifest["kind"] != "RayCluster":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["ray-head", "ray-worker"])
def test_the_pods_of_ray_satisfy_the_schema_of_pods(name):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pods()[name]}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_kustomize_builds_everything_in_the_namespace():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(manifests())
    assert {m["metadata"].get("namespace", "mempo") for m in built} == {"mempo"}


def test_the_head_is_the_service_that_the_cluster_file_names():
    cluster = yaml.safe_load((ROOT / "conf" / "cluster" / "kuberay.yaml").read_text())
    assert cluster["address"] == f"{ray_cluster().metadata['name']}-head-svc:6379"
    worker = {entry["name"]: entry.get("value") for entry in containers()["worker"]["env"]}
    assert worker["MEMPO_RAY_ADDRESS"] == cluster["address"]
    assert worker["MEMPO_CLUSTER"] == "kuberay"
    assert cluster["tracking"]["uri"] == "http://mlflow:5000"


def test_the_version_of_ray_is_that_of_its_image():
    lock = (ROOT / "infra" / "constraints-cuda.txt").read_text(encoding="utf-8")
    assert f"\nray=={ray_cluster().spec.rayVersion}\n" in lock


def test_drivers_and_nodes_of_ray_are_of_one_image():
    images = {containers()[name]["image"] for name in ("ray-head", "ray-worker", "worker")}
    assert len(images) == 1


@pytest.mark.parametrize("name", containers())
def test_images_are_pinned(name):
    assert re.search(r":\d+\.\d+\.\d+$", containers()[name]["image"])


@pytest.mark.parametrize("name", containers())
def test_no_pod_has_rights(name):
    pod, container = pods()[name], containers()[name]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", containers())
def test_every_pod_is_probed_and_asks_for_what_it_needs(name):
    container = containers()[name]
    assert "livenessProbe" in container
    assert "readinessProbe" in container or "startupProbe" in container
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", containers())
def test_secrets_are_references(name):
    for entry in containers()[name]["env"]:
        if SECRET.search(entry["name"]):
            assert "secretKeyRef" in entry["valueFrom"], entry["name"]


def test_no_secret_has_a_manifest_and_the_readme_makes_every_key():
    assert not of_kind("Secret")
    readme = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    for container in containers().values():
        for reference in secrets_of(container).values():
            assert f"create secret generic {reference['name']} " in readme
            assert f"--from-literal={reference['key']}=" in readme


@pytest.mark.parametrize("name", ["ray-head", "ray-worker", "worker"])
def test_ray_wants_its_token_and_all_share_the_runs(name):
    env = {entry["name"]: entry.get("value") for entry in containers()[name]["env"]}
    assert env["RAY_AUTH_MODE"] == "token"
    assert secrets_of(containers()[name])["RAY_AUTH_TOKEN"]["name"] == "mempo-ray"
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pods()[name]["volumes"][:1]]
    assert claims == [of_kind("PersistentVolumeClaim")[0]["metadata"]["name"]]
    assert of_kind("PersistentVolumeClaim")[0]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_services_are_reached_from_the_namespace_alone():
    policy = of_kind("NetworkPolicy")[0]["spec"]
    assert policy["podSelector"] == {}
    assert policy["ingress"] == [{"from": [{"podSelector": {}}]}]
    assert {service["spec"].get("type", "ClusterIP") for service in of_kind("Service")} == {
        "ClusterIP"
    }
