import os
import subprocess
import sys

from tasks import processes


def test_this_process_is_alive_and_its_birth_does_not_change():
    born = processes.birth(os.getpid())
    assert born and born == processes.birth(os.getpid())
    assert processes.alive(processes.host(), str(os.getpid()), born) is True


def test_a_reused_process_id_is_not_the_old_process():
    place = processes.birth(os.getpid()).rpartition("/")[0]
    assert processes.alive(processes.host(), str(os.getpid()), f"{place}/1") is False


def test_a_killed_process_is_gone_even_before_its_parent_asks():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    born = processes.birth(child.pid)
    assert processes.alive(processes.host(), str(child.pid), born) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    assert processes.alive(processes.host(), str(child.pid), born) is False
    child.wait()
    assert processes.alive(processes.host(), str(child.pid), born) is False


def test_nothing_is_claimed_about_other_hosts_containers_or_unknown_ids():
    born = processes.birth(os.getpid())
    assert processes.alive("elsewhere", str(os.getpid()), born) is None
    assert processes.alive(processes.host(), str(os.getpid()), "boot/pid:[1]/5") is None
    assert processes.alive(processes.host(), "", "") is None
