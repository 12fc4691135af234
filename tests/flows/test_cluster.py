"""A run on a real cluster of three Ray nodes, each a process of its own, that lose one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from conf.load import load
from mempo.config import Experiment

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A head without room for models and two nodes with room for two each; a Prefect server."""
    from ray.cluster_utils import Cluster

    from tasks.prefect_server import prefect_server
    from tasks.ray_cluster import connect_ray, shutdown_ray

    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "ERROR")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    workers = [cluster.add_node(num_cpus=1) for _ in range(2)]
    address = str(cluster.address)
    try:
        with prefect_server(lambda _: None):
            connect_ray(experiment(address).cluster)
            try:
                yield SimpleNamespace(cluster=cluster, workers=workers, address=address)
            finally:
                shutdown_ray()
    finally:
        cluster.shutdown()


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


def run_of(home: Path) -> str:
    return next((home / "store").iterdir()).name


def kill_when(nodes: SimpleNamespace, home: Path, of: int, reached: Callable[[Path], bool]) -> Any:
    """Kill the node of the model number `of` (0 the sampler, 1 the learner) once `reached`."""
    lost: list[str] = []

    def wait_and_kill() -> None:
        deadline = time.monotonic() + 240
        while not ((home / "store").is_dir() and reached(home / "store" / run_of(home))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lost.append(tracker().run_info(run_of(home)).tags["mempo.nodes"].split()[of])
        (node,) = [n for n in nodes.workers if n.node_id == lost[0]]
        nodes.cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return SimpleNamespace(thread=thread, lost=lost)


def weights(folder: str) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


def test_models_are_on_different_nodes_and_a_lost_sampler_costs_one_iteration(
    nodes: SimpleNamespace, tmp_path: Path
) -> None:
    from flows.train import train

    def in_second_iteration(store: Path) -> bool:
        return (store / "checkpoints" / "000001" / "checkpoint.json").is_file()

    killer = kill_when(nodes, tmp_path, 0, in_second_iteration)
    result = train(experiment(nodes.address))
    killer.thread.join()
    info = tracker().run_info(result.run_id)
    before, after = killer.lost[0], info.tags["mempo.nodes"].split()
    assert before not in after and len(set(after)) == 1  # both are where there still is room
    assert info.status == "FINISHED"
    rewards = tracker().metric_history(result.run_id, "reward/mean")
    assert [point.step for point in rewards] == [1, 2, 3]
    table = pd.read_parquet(Path(result.folder) / "iterations" / "000002" / "rollouts.parquet")
    assert set(table["policy_version"]) == {1}


def test_a_lost_learner_goes_on_from_its_checkpoint_without_a_person(
    nodes: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.train import train

    def in_third_iteration(store: Path) -> bool:
        return (store / "checkpoints" / "000002" / "checkpoint.json").is_file()

    killer = kill_when(nodes, tmp_path, 1, in_third_iteration)
    result = train(experiment(nodes.address))
    killer.thread.join()
    assert tracker().run_info(result.run_id).status == "FINISHED"
    said = capsys.readouterr().err
    assert "going on with new models (1 of 3)" in said
    assert "going on after iteration 2 of 3" in said
    # The very weights of a run that lost nobody.
    whole = train(experiment(nodes.address))
    assert weights(whole.checkpoint) == weights(result.checkpoint)
