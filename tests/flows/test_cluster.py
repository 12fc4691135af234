"""A run on a real cluster of three Ray nodes, each a process of its own, that lose one another."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from conf.load import load
from mempo.config import Experiment

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A head without room for models, and a Prefect server."""
    from ray.cluster_utils import Cluster

    from tasks.prefect_server import prefect_server
    from tasks.ray_cluster import connect_ray, shutdown_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PREFECT_LOGGING_LEVEL", "ERROR")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        try:
            with prefect_server(lambda _: None):
                connect_ray(experiment(str(cluster.address)).cluster)
                try:
                    yield cluster
                finally:
                    shutdown_ray()
        finally:
            cluster.shutdown()


@pytest.fixture
def nodes(cluster):
    """The cluster with two nodes that have room for two models each."""
    missing = 2 - len(cluster.worker_nodes)
    for _ in range(missing):
        cluster.add_node(num_cpus=1)
    workers = list(cluster.worker_nodes)
    return SimpleNamespace(cluster=cluster, workers=workers, address=str(cluster.address))


def experiment(address: str, *overrides: str) -> Experiment:
    settings = (
        f"cluster.address={address}",
        *("cluster.placement=spread", "cluster.threads=1", "cluster.sampler_cpus=0.5"),
        *("iterations=3", "rollout.questions=2", "rollout.group_size=4"),
        *("environment.objectives=[2]", "evaluate.questions=4", "evaluate.objectives=[2]"),
    )
    return load("demo", overrides=[*settings, *overrides])


def tracker() -> Any:
    from tasks.tracking import Tracker

    return Tracker()


def lose_node(
    nodes: SimpleNamespace, patch: pytest.MonkeyPatch, of: int, iteration: int
) -> list[str]:
    """Kill the node of model `of` (0 the sampler, 1 the learner) once, in that iteration.

    The model stands still from the iteration's start on, so that it dies while a stage waits for
    it. The list gets the id of the node.
    """
    import ray

    from flows.training import Training

    whole, lost = Training._iterate, []

    def iterate(self: Training, number: int) -> dict[str, float]:
        if number == iteration and not lost:
            lost.append(self.models.nodes[of])
            actor = [*self.models.samplers, *self.models.learners][of]
            pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))  # pyright: ignore
            os.kill(pid, signal.SIGSTOP)
            (node,) = [n for n in nodes.workers if n.node_id == lost[0]]
            threading.Timer(1.0, remove, (node, pid)).start()
        return whole(self, number)

    def remove(node: Any, pid: int) -> None:
        nodes.cluster.remove_node(node, allow_graceful=False)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # what stands still sees no end of its node

    patch.setattr(Training, "_iterate", iterate)
    return lost


def weights(folder: str) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


def test_models_are_on_different_nodes_and_a_lost_sampler_costs_one_iteration(
    nodes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    lost = lose_node(nodes, monkeypatch, 0, iteration=2)
    result = train(experiment(nodes.address))
    info = tracker().run_info(result.run_id)
    (before,), after = lost, info.tags["mempo.nodes"].split()
    assert before not in after and len(set(after)) == 1  # both are where there still is room
    assert info.status == "FINISHED"
    rewards = tracker().metric_history(result.run_id, "reward/mean")
    assert [point.step for point in rewards] == [1, 2, 3]
    table = pd.read_parquet(Path(result.folder) / "iterations" / "000002" / "rollouts.parquet")
    assert set(table["policy_version"]) == {1}


def test_a_lost_learner_goes_on_from_its_checkpoint_without_a_person(
    nodes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.train import train

    lost = lose_node(nodes, monkeypatch, 1, iteration=3)
    result = train(experiment(nodes.address))
    assert len(lost) == 1 and tracker().run_info(result.run_id).status == "FINISHED"
    said = capsys.readouterr().err
    assert "going on with new models (1 of 3)" in said
    assert "going on after iteration 2 of 3" in said
    # The very weights of a run that lost nobody.
    whole = train(experiment(nodes.address))
    assert weights(whole.checkpoint) == weights(result.checkpoint)
