import signal

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
