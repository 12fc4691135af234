"""Addresses of Ray clusters: is it one, does a Ray answer there, is it the one that was joined?

`ray.init` waits 20 to 40 seconds for a wrong address; these checks take a few at most.
"""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1", "0.0.0.0")

_CONNECT_TIMEOUT_S = 5.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = 4  # type of the frame that every HTTP/2, so every gRPC, server starts with


def check_ray(address: str) -> None:
    """Raise a ValueError that names cluster.address unless a gRPC server, as Ray is, answers."""
    host, port, _ = split_address(address)
    cure = "correct it, start the cluster (`ray start --head`), or leave it empty for a local Ray"
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.sendall(_HTTP2_HELLO)
            answer = connection.recv(9)
    except OSError as error:
        from tasks.supervisor import running

        if ours := running().get("ray"):  # on a port that its user chose
            cure = f"the Ray of `mempo up` is at {ours}: --set cluster.address={ours}"
        raise ValueError(
            f"cluster.address: nothing answers at {address} ({error}); {cure}"
        ) from None
    if answer[3:4] != bytes([_HTTP2_SETTINGS]):
        raise ValueError(
            f"cluster.address: what answers at {address} is not Ray (8265 is the dashboard's port; "
            f"give the head's GCS port 6379, or ray://host:10001); {cure}"
        )


def same_ray(asked: str, joined: str, node_ip: str) -> bool:
    """Whether the head at `joined` (host:port) is the one that was asked for.

    A ray:// address names a proxy, so only a GCS address can be compared. Ray writes its node's
    own IP address for this machine.
    """
    host, port, is_client = split_address(asked)
    if is_client:
        return True
    joined_host, joined_port, _ = split_address(joined)
    return port == joined_port and bool(_ips(host, node_ip) & _ips(joined_host, node_ip))


def split_address(address: str) -> tuple[str, int, bool]:
    """(host, port, whether it is a ray:// client address).

    Raises:
        ValueError: not an address, or 'auto'; names cluster.address.
    """
    if address == "auto":
        raise ValueError(
            "cluster.address: 'auto' may join any Ray or silently start a private one; name the "
            "head, as host:6379 or ray://host:10001, or leave it empty for a local Ray"
        )
    scheme, separator, _ = address.partition("://")
    try:
        parts = urlsplit(address if separator else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if (separator and scheme != "ray") or not host or not port:
        raise ValueError(
            f"cluster.address: '{address}' is not an address; write host:6379 or ray://host:10001"
        )
    return host, port, bool(separator)


def _ips(host: str, node_ip: str) -> set[str]:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        found = {host}
    return found | {node_ip} if host in LOCAL_HOSTS else found
