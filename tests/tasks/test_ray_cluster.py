import signal

import psutil
import pytest

from tasks import ray_cluster


def test_a_handler_of_sigterm_survives_what_takes_it_away():
    def ours(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with ray_cluster._own_sigterm():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is ours
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ray_cluster._own_sigterm():  # where nobody handles it, Ray's own handler is better
            signal.signal(signal.SIGTERM, ours)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.services
@pytest.mark.filterwarnings("default")
def test_a_local_ray_listens_on_the_loopback_alone():
    from mempo.config import Cluster

    ray_cluster.connect_ray(Cluster(cpus=1, threads=1))
    try:
        me = psutil.Process()
        listening = [
            connection.laddr.ip
            for process in (me, *me.children(recursive=True))
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
    finally:
        ray_cluster.shutdown_ray()
    assert len(listening) >= 4  # of its head, its node and their agents
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
