"""A secret of the environment, planted in a real run, is nowhere in what the run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tasks import store

ROOT = Path(store.__file__).parents[1]
MARKER = "planted-by-the-test-of-secrets"


@pytest.mark.services
@pytest.mark.slow
def test_a_run_leaves_no_secret_anywhere(tmp_path: Path) -> None:
    secrets = (
        "MLFLOW_TRACKING_PASSWORD",
        "MEMPO_RETRIEVER_TOKEN",
        "PREFECT_API_AUTH_STRING",
        "PREFECT_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
    )
    home = tmp_path / "home"
    # Ray's sockets need a short path; its logs are what is looked through.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray:
        env = {
            **os.environ,
            **dict.fromkeys(secrets, f"me:{MARKER}"),
            "MEMPO_HOME": str(home),
            "RAY_TMPDIR": ray,
        }
        command = "train -p test --set cluster.cpus=2 --set iterations=1 --set evaluate.questions=1"
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *command.split()],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert MARKER not in done.stdout + done.stderr
        left = [file for place in (home, Path(ray)) for file in place.rglob("*") if file.is_file()]
        names = {file.name for file in left}
        # The places that are known to be chatty were looked at.
        assert names >= {"mlflow.db", "prefect.db", "journal.jsonl", "runtime_env_agent.log"}
        assert [str(file) for file in left if MARKER.encode() in file.read_bytes()] == []
        # MLflow's database is a file in pages: a value could be parted by their borders.
        dump = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).iterdump())"
        for database in (home / "mlflow.db", home / "prefect" / "prefect.db"):
            told = subprocess.run(
                [sys.executable, "-c", dump, str(database)], capture_output=True, text=True
            )
            assert told.returncode == 0 and "CREATE TABLE" in told.stdout, told.stderr
            assert MARKER not in told.stdout
