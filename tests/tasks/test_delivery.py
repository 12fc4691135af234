"""Delivery to a server that, unlike MLflow's databases, would keep every doubled point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from tasks import delivery, journal


class Recorder:
    """Keeps what arrives; `lose` answers are lost after it arrived, `refuse` names a bad key."""

    def __init__(self, lose: int = 0, refuse: str = "") -> None:
        self.batches: list[list[tuple[str, int, float]]] = []
        self.lose = lose
        self.refuse = refuse

    def log_batch(
        self, run_id: str, metrics: Sequence[Metric] = (), tags: Sequence[RunTag] = (), **_: Any
    ) -> None:
        if any(metric.key == self.refuse for metric in metrics):
            raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "bad key"})
        assert len(metrics) + len(tags) <= 1000
        self.batches.append([(metric.key, metric.step, metric.value) for metric in metrics])
        if self.lose:
            self.lose -= 1
            raise ConnectionError("no answer")

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return [Metric(k, value, 0, step) for k, step, value in self.points if k == key]

    @property
    def points(self) -> list[tuple[str, int, float]]:
        return [point for batch in self.batches for point in batch]


def log(folder: Path, step: int, **metrics: float) -> None:
    journal.append(folder, {"kind": "metrics", "time": 1, "step": step, "metrics": metrics})


def deliver(server: Recorder, folder: Path, *, check: bool) -> None:
    delivery.deliver(cast(MlflowClient, server), "0", "run", folder, check=check)


def test_entries_that_waited_travel_in_one_batch(tmp_path):
    server = Recorder()
    for step in range(5):
        log(tmp_path, step, a=float(step), b=0.5)
    deliver(server, tmp_path, check=False)
    assert len(server.batches) == 1 and len(server.points) == 10
    deliver(server, tmp_path, check=False)
    assert len(server.batches) == 1 and journal.settled(tmp_path)


def test_a_lost_answer_doubles_no_point(tmp_path):
    server = Recorder(lose=1)
    log(tmp_path, 1, a=1.0)
    with pytest.raises(ConnectionError):
        deliver(server, tmp_path, check=False)
    log(tmp_path, 2, a=2.0)
    deliver(server, tmp_path, check=True)
    assert server.points == [("a", 1, 1.0), ("a", 2, 2.0)]


def test_a_kill_between_sending_and_its_mark_doubles_no_point(tmp_path):
    server = Recorder()
    log(tmp_path, 1, a=1.0)
    deliver(server, tmp_path, check=False)
    journal.mark_sent(tmp_path, 0)
    deliver(server, tmp_path, check=True)
    assert server.points == [("a", 1, 1.0)]


def test_thousands_of_metrics_are_split_into_batches_that_mlflow_takes(tmp_path):
    server = Recorder()
    log(tmp_path, 1, **{f"m{i}": float(i) for i in range(2000)})
    deliver(server, tmp_path, check=False)
    assert [len(batch) for batch in server.batches] == [999, 999, 2]
    assert {value for _, _, value in server.points} == {float(i) for i in range(2000)}


def test_nan_and_infinity_are_not_sent(tmp_path):
    server = Recorder()
    log(tmp_path, 1, a=float("nan"), b=float("inf"), c=1.0)
    deliver(server, tmp_path, check=False)
    assert server.points == [("c", 1, 1.0)]


def test_a_refused_entry_is_an_error_once_and_blocks_no_later_one(tmp_path):
    server = Recorder(refuse="bad")
    log(tmp_path, 1, bad=1.0)
    with pytest.raises(MlflowException, match="bad key"):
        deliver(server, tmp_path, check=False)
    log(tmp_path, 2, good=2.0)
    deliver(server, tmp_path, check=True)
    assert server.points == [("good", 2, 2.0)]


def test_only_mlflow_itself_can_refuse():
    proxy = "API request to endpoint /x failed with error code 404 != 200"
    assert delivery.rejected(MlflowException("no such run", RESOURCE_DOES_NOT_EXIST))
    assert not delivery.rejected(MlflowException(proxy, RESOURCE_DOES_NOT_EXIST))
    assert not delivery.rejected(MlflowException("database is locked"))
    assert not delivery.rejected(ConnectionError())


@pytest.mark.parametrize("name", ["a" * 251, "p@1", "", "/a", "a//b"])
def test_names_that_mlflow_refuses_are_refused_before(name):
    with pytest.raises(ValueError, match="metric '"):
        delivery.check_names({name: 1.0})


def test_the_documented_names_pass():
    delivery.check_names({"eval/n2/f1": 1.0, "audit/logprob_diff_max": 1.0, "a" * 250: 1.0})
