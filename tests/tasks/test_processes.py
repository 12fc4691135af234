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


def test_freed_memory_goes_back_to_the_system():
    """In a process whose allocator keeps what it frees, as the actors' do."""
    code = """
import sys
from pathlib import Path
from tasks.processes import release_memory

def resident():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in l)
    return int(line.split()[1]) // 1024

before = resident()
kept = [bytearray(2**22) for _ in range(50)]  # 200 MB in pieces, and a small one above them
above = bytearray(2**16)
del kept
held = resident()
release_memory()
print(before, held, resident())
"""
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    before, held, after = map(int, done.stdout.split())
    assert held - before > 150 and after - before < 50
