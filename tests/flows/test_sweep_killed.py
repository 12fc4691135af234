"""A sweep of 12 trials on the atlas, killed in the middle and gone on: 12 in all, none twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conf.load import load, sha256
from conf.sweep import load_sweep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.filterwarnings("default"),  # MLflow's and SQLAlchemy's own
]

SWEEP = ("sweep", "test", "--set", "cluster.cpus=2")


def start(home: Path, *more: str) -> tuple[subprocess.Popen, Path]:
    log = home / f"log-{len(list(home.glob('log-*')))}"
    env = {**os.environ, "MEMPO_HOME": str(home), "PREFECT_LOGGING_LEVEL": "ERROR"}
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "flows.cli", *SWEEP, *more]
        return subprocess.Popen(command, env=env, stdout=stream, stderr=stream), log


def kill_all(process: subprocess.Popen) -> None:
    """SIGKILL, and to all that it started, as in a power cut."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in started:
        if child.is_running():
            child.kill()
    process.wait()
    _, alive = psutil.wait_procs(started, timeout=180)  # Ray's agents look for their head a while
    assert not alive


def test_a_sweep_that_is_killed_and_goes_on_has_each_trial_once(tmp_path, monkeypatch):
    from flows.sweep_plan import ranked, trials_of
    from tasks.search import Search
    from tasks.tracking import Tracker

    process, log = start(tmp_path)
    deadline = time.monotonic() + 600
    while "trial 5 seed 1: MLflow run" not in log.read_text():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(3)  # in the middle of its training
    kill_all(process)
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path))
    tracker = Tracker()
    (run,) = tracker.find({"mempo.kind": "sweep"})
    before = {t.number: t.run.run_id for t in trials_of(tracker, run.run_id)}
    assert len(before) >= 6

    process, log = start(tmp_path, "--resume", "auto")
    assert process.wait(timeout=600) == 0, log.read_text()[-3000:]
    told = log.read_text()
    assert f"going on with run {run.run_id}" in told
    begun = re.findall(r"trial (\d+): \d+ of 12", told)
    assert begun == [str(n) for n in range(len(before) - 1, 12)]
    (sweep_run,) = tracker.find({"mempo.kind": "sweep"})
    trials = trials_of(tracker, sweep_run.run_id)
    assert sweep_run.status == "FINISHED" and [t.number for t in trials] == list(range(12))
    assert {t.number: t.run.run_id for t in trials[: len(before)]} == before
    assert len(tracker.find({"mempo.kind": "trial"})) == 12
    trained = tracker.find({"mempo.kind": "train"})
    assert {r.status for r in trained} == {"FINISHED"}
    assert sorted(int(r.tags["mempo.trial"]) for r in trained) == list(range(12))
    values = [trial.outcome.value for trial in trials]
    assert [t.state for t in trials] == ["complete"] * 12 and len(set(values)) > 1

    # A sweep that is left alone asks for these very points.
    plan = load_sweep("test")
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "alone"))
    alone = Search("alone", plan.space, method=plan.method, seed=1, trials=plan.trials)
    for trial in trials:
        asked = alone.ask()
        assert asked is not None and (asked.number, asked.point) == (trial.number, trial.point)
        alone.tell(asked.number, "complete", trial.outcome.value)
    assert alone.ask() is None

    best = ranked(trials)[0]
    assert best.outcome.value == max(values)
    preset = tmp_path / "store" / sweep_run.run_id / "best.yaml"
    assert sha256(load(str(preset))) == sha256(plan.experiment(best.point, 1))
    assert f"mempo train --preset {preset}" in told
