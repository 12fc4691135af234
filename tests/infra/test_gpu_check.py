"""The script for a GPU, as a dry run on whatever is here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "infra" / "gpu_check.py"


def test_a_dry_run_measures_and_agrees() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["score_tokens_per_s"] > 0 and found["train_tokens_per_s"] > 0
    assert 0 < found["score_share_of_matmul"] < 1
    assert found["float32_gradient_norm_gap"] < 1e-3
    assert found["float32_max_diff"] < 1e-3 and found["bfloat16_mean_diff"] < 0.1
