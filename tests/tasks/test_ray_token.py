"""The token of a Ray head, in a home of the test's own."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tasks import ray_token


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_it_is_made_once_where_ray_looks_and_only_its_owner_reads_it(home):
    path = ray_token.ensure()
    assert path == home / ".ray" / "auth_token"
    token = path.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ray_token.ensure().read_text() == token
    assert [file.name for file in path.parent.iterdir()] == ["auth_token"]


def test_a_token_of_rays_own_is_kept_and_closed_to_others(home):
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("of ray itself")
    path.chmod(0o644)
    assert ray_token.ensure().read_text() == "of ray itself"
    assert path.stat().st_mode & 0o777 == 0o600


def test_whoever_makes_it_at_the_same_time_gets_the_same():
    together = Barrier(8)

    def make(_: int) -> str:
        together.wait()
        return ray_token.ensure().read_text()

    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(make, range(8)))
    assert len(set(tokens)) == 1 and len(tokens[0]) == 64
