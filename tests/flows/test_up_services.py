"""What `mempo up` tells its services, as the installed packages read it; nothing is started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flows.up import _services


@pytest.mark.filterwarnings("default")  # MLflow and SQLAlchemy warn about each other
def test_no_service_waits_at_its_end_for_what_nobody_uses(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MEMPO_DATABASE_URL", raising=False)
    told = {service.name: service.env for service in _services(1, 2, 3)}
    asked = {
        "ray": "from ray._private.ray_constants import RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S as x; "
        "print(x)",
        "mlflow": "from mlflow.environment_variables import MLFLOW_SERVER_ENABLE_JOB_EXECUTION as "
        "x; print(x.get())",
    }
    read = {
        name: subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **told[name]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name, code in asked.items()
    }
    assert read == {"ray": "0.0", "mlflow": "False"}
