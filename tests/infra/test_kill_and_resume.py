"""A run that is killed and resumed ends as one that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra" / "kill_and_resume.py"


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize(
    ("kills", "settings"),
    [
        (3, []),  # in training, in a checkpoint, in scoring
        (2, ["--set=pipeline=one_step_off", "--set=loss.importance=truncated"]),
    ],
)
def test_fault_40_sigkill_wherever_it_comes_changes_no_bit(kills: int, settings: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", str(kills), *settings],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "kills": kills, "iterations": 4, "identical": True
    }  # fmt: skip
