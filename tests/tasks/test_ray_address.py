import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mempo.config import Cluster
from tasks import supervisor
from tasks.ray_address import check_ray, same_ray, split_address
from tasks.ray_cluster import connect_ray

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
GRPC = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty SETTINGS frame of HTTP/2


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """host:port of a server that answers whatever it is asked with `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=5)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def refused_without_any_ray(address: str) -> str:
    """What is said of a wrong address; no Ray, private or other, may have been started."""
    import ray

    with pytest.raises(ValueError) as caught:
        connect_ray(Cluster(address=address))
    assert not ray.is_initialized()
    message = str(caught.value)
    assert message.startswith("cluster.address: ") and "\n" not in message
    return message


def test_fault_47_a_closed_port_is_an_error(closed_port):
    message = refused_without_any_ray(f"127.0.0.1:{closed_port}")
    assert f"nothing answers at 127.0.0.1:{closed_port}" in message
    assert "ray start --head" in message


def test_the_ray_of_mempo_up_on_another_port_is_named(closed_port, monkeypatch):
    monkeypatch.setattr(supervisor, "running", lambda: {"ray": "127.0.0.1:7001"})
    message = refused_without_any_ray(f"127.0.0.1:{closed_port}")
    assert message.endswith("--set cluster.address=127.0.0.1:7001")


def test_fault_47_a_closed_client_port_is_an_error(closed_port):
    assert "nothing answers" in refused_without_any_ray(f"ray://127.0.0.1:{closed_port}")


def test_fault_47_auto_is_an_error():
    assert "'auto'" in refused_without_any_ray("auto")


def test_fault_47_a_server_that_is_no_ray_is_an_error():
    with answering(HTTP) as address:
        assert f"what answers at {address} is not Ray" in refused_without_any_ray(address)


def test_fault_47_an_address_in_the_environment_is_not_taken(monkeypatch, closed_port):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    message = refused_without_any_ray(f"127.0.0.1:{closed_port}")
    assert str(closed_port) in message


@pytest.mark.parametrize(
    "address", ["head", "head:", "head:port", ":6379", "http://head:6379", "head:99999", "ray://"]
)
def test_fault_47_what_is_no_address_is_refused(address):
    assert repr(address) in refused_without_any_ray(address)


def test_a_grpc_server_passes():
    with answering(GRPC) as address:
        check_ray(address)


def test_tls_is_not_spoken_to(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check_ray(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("head:6379", ("head", 6379, False)),
        ("ray://head.cluster:10001", ("head.cluster", 10001, True)),
        ("10.0.0.1:6379", ("10.0.0.1", 6379, False)),
        ("[::1]:6379", ("::1", 6379, False)),
    ],
)
def test_addresses_are_split(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    ("asked", "joined", "same"),
    [
        ("127.0.0.1:6379", "10.0.0.5:6379", True),  # Ray writes this node's address instead
        ("localhost:6379", "10.0.0.5:6379", True),
        ("10.0.0.5:6379", "10.0.0.5:6379", True),
        ("10.0.0.5:6379", "10.0.0.5:6380", False),
        ("10.0.0.6:6379", "10.0.0.5:6379", False),
        ("ray://proxy:10001", "10.0.0.5:6379", True),  # a proxy's address cannot be compared
    ],
)
def test_whether_it_is_the_ray_that_was_asked_for(asked, joined, same):
    assert same_ray(asked, joined, node_ip="10.0.0.5") is same


def test_the_environment_is_left_as_it_was(closed_port):
    before = os.environ.get("RAY_ADDRESS")
    refused_without_any_ray(f"127.0.0.1:{closed_port}")
    assert os.environ.get("RAY_ADDRESS") == before
