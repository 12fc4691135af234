import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import records


def test_params_are_text_as_it_is_or_json_and_never_too_long():
    assert records.param_text("a, b") == "a, b"
    assert records.param_text(0.28) == "0.28"
    assert records.param_text(True) == "true"
    assert records.param_text(None) == "null"
    assert json.loads(records.param_text((2, 4, 6))) == [2, 4, 6]
    assert records.param_text("x" * 6000) == "x" * 6000
    assert records.param_text("x" * 6001) == "x" * 5997 + "..."


def test_the_commit_is_that_of_the_code_and_says_when_it_was_changed(monkeypatch, tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    code = tmp_path / "code.py"
    code.write_text("1")
    monkeypatch.setattr(records, "__file__", str(code))
    assert records.git_commit() == "unknown"
    git("init", "-q")
    assert records.git_commit() == "unknown"  # in somebody's checkout, but not of it
    git("add", "code.py")
    git("commit", "-q", "-m", "one")
    assert records.git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "notes").write_text("untracked")
    assert records.git_commit() == git("rev-parse", "HEAD")
    code.write_text("2")
    assert records.git_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert records.git_commit() == "unknown"


def test_a_download_stays_in_its_own_folder(tmp_path):
    (tmp_path / "secret.json").write_text("[1]")

    def client(place: str) -> Any:
        def download(run_id: str, file: str, aside: str) -> str:
            target = Path(aside) / file
            if place == "link":
                target.symlink_to(tmp_path / "secret.json")
            elif place == "inside":
                target.write_text("[2]")
            else:
                target = tmp_path / "secret.json"
            return str(target)

        listed = [SimpleNamespace(path="plan.json")]
        return SimpleNamespace(list_artifacts=lambda *_: listed, download_artifacts=download)

    assert records.read_json(client("inside"), "r", "plan.json") == [2]
    assert records.read_json(client("inside"), "r", "other.json") == []
    for place in ("link", "outside"):
        with pytest.raises(ValueError, match=r"plan\.json of run r leads out"):
            records.read_json(client(place), "r", "plan.json")
