"""Kill a training run again and again, resume it, and compare it with one that was left alone.

    python infra/kill_and_resume.py --kills 20
    python infra/kill_and_resume.py --set pipeline=one_step_off --set loss.importance=truncated

A small run (float32, transformers sampler) is done once without a break and once with SIGKILLs at
random moments: in turn inside the rollout, scoring, training, the checkpoint's write and between
them; now the flow's process alone, now with all that it started, as in a power cut. After each kill
`mempo train --resume` goes on. At the end weights and optimiser state have to be equal in every
bit, every metric but the times has to have the same value, once a step, and nothing may be left
running. Exit status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from mlflow import MlflowClient

SETTINGS = (
    *("rollout.questions=2", "rollout.group_size=4", "environment.objectives=[2]"),
    *("learner.epochs=2", "loss.kl=0.01", "memory.full_every=1"),
    *("evaluate.questions=4", "evaluate.objectives=[2]", "evaluate.every=2"),
    *("checkpoint.best=eval/n2/f1", "tracking.traces=0"),
)
MOMENTS = ("train", "checkpoint", "score", "rollout", "any")
LIFE_S = 600  # a run that takes longer hangs
MODELS_GONE_S = 30  # after the kill of the flow its models have to be gone by then
ALL_GONE_S = 180  # Ray's own agents try to reach their dead head for a minute


class Life:
    """One process of the run, from its start to its end or to a SIGKILL."""

    def __init__(self, home: Path, arguments: list[str]):
        self.agents: list[psutil.Process] = []  # that outlive a kill for a while
        env = {**os.environ, "MEMPO_HOME": str(home), "PREFECT_LOGGING_LEVEL": "ERROR"}
        self.log = home / f"life-{len(list(home.glob('life-*.log'))):02d}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "flows.cli", "train", *arguments]
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def wait(self) -> None:
        """To its end, which has to be a good one."""
        if self.process.wait(timeout=LIFE_S):
            raise SystemExit(f"the run failed, see {self.log}:\n{self.log.read_text()[-3000:]}")

    def kill_at(self, reached: Callable[[], bool], *, all_of_it: bool) -> bool:
        """SIGKILL as soon as `reached`; False where the run was over before."""
        deadline = time.monotonic() + LIFE_S
        while not reached():
            if self.process.poll() is not None:
                self.wait()
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"the run hangs, see {self.log}")
            time.sleep(0.0005)
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in started if all_of_it else ():
            if child.is_running():
                child.kill()
        self.process.wait()
        agents = [p for p in started if named(p).endswith("Agent")]
        check_gone([p for p in started if p not in agents], MODELS_GONE_S)
        self.agents = agents
        return True


def named(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def check_gone(processes: list[psutil.Process], seconds: int) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    if alive:
        raise SystemExit(f"{seconds} s after the kill there still live {alive}")


def moment(home: Path, name: str, iterations: int, draw: random.Random) -> Callable[[], bool]:
    """When to kill: a while into the stage `name` of one of the next two iterations."""
    target = min(last_iteration(home) + draw.randint(1, 2), iterations)
    delay = draw.random() * {"checkpoint": 0.02, "any": 4.0}.get(name, 0.4)
    since: list[float] = []

    def reached() -> bool:
        if not since and stage_began(home, name, target):
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= delay

    return reached


def last_iteration(home: Path) -> int:
    """The last iteration that has a complete checkpoint."""
    done = home.glob("store/*/checkpoints/*/checkpoint.json")
    return max((int(f.parent.name) for f in done if f.parent.name.isdigit()), default=0)


def stage_began(home: Path, name: str, target: int) -> bool:
    """Whether the stage of iteration `target` has begun, by what lies in the store."""
    store = next(home.glob("store/*"), home)
    rollouts = store / "iterations" / f"{target:06d}" / "rollouts.parquet"
    match name:
        case "checkpoint":
            return (store / "checkpoints" / f"{target:06d}.partial").is_dir()
        case "rollout":  # or the evaluation before it
            return (store / "journal.jsonl").is_file() and last_iteration(home) >= target - 1
        case "score":
            return rollouts.is_file()
        case "train":
            try:
                return "adv_traj" in pq.read_schema(rollouts).names
            except (OSError, ValueError):  # not there yet, or half written
                return False
        case _:
            return (store / "journal.jsonl").is_file()


def outcome(home: Path) -> tuple[dict[str, str], dict[str, list[tuple[int, float]]]]:
    """(sha256 of the last checkpoint's tensors, points of each metric) of the only run."""
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    if run.info.status != "FINISHED":
        raise SystemExit(f"run {run.info.run_id} in {home} is {run.info.status}")
    folder = max((home / "store" / run.info.run_id / "checkpoints").glob("[0-9]*[0-9]"))
    names = ("model.safetensors", "optimizer.state")
    files = {name: sha256((folder / name).read_bytes()).hexdigest() for name in names}
    points = {
        key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    return files, points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=0, help="default: one a kill, at least 4")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--set", action="append", default=[], help="a further setting of the run")
    given = parser.parse_args()
    iterations = given.iterations or max(given.kills, 4)
    settings = [f"--set={s}" for s in (*SETTINGS, f"iterations={iterations}", *given.set)]
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="mempo-kills-") as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        for home in (whole, broken):
            home.mkdir()
        print("one run without a break ...", flush=True)
        Life(whole, settings).wait()
        arguments, kills = settings, 0
        agents: list[psutil.Process] = []
        for number in range(given.kills):
            name, all_of_it = MOMENTS[number % len(MOMENTS)], draw.random() < 0.5
            reached = moment(broken, name, iterations, draw)
            life = Life(broken, arguments)
            if not life.kill_at(reached, all_of_it=all_of_it):
                break
            kills += 1
            agents += life.agents
            (store,) = (broken / "store").iterdir()
            arguments = ["--resume", store.name]
            done = last_iteration(broken)
            what = "all its processes" if all_of_it else "the flow"
            print(f"kill {kills}: {what}, in {name}, after iteration {done}", flush=True)
        else:
            Life(broken, arguments).wait()
        check_gone(agents, ALL_GONE_S)
        compare(outcome(whole), outcome(broken), iterations)
        print(json.dumps({"kills": kills, "iterations": iterations, "identical": True}))
        if kills < given.kills:
            raise SystemExit("the run was over before all kills were done; raise --iterations")


def compare(
    whole: tuple[dict[str, str], dict[str, list[tuple[int, float]]]],
    broken: tuple[dict[str, str], dict[str, list[tuple[int, float]]]],
    iterations: int,
) -> None:
    """Exit with what differs."""
    if whole[0] != broken[0]:
        raise SystemExit(f"the weights differ: {whole[0]} and {broken[0]}")
    if whole[1].keys() != broken[1].keys():
        raise SystemExit(f"only one has the metrics {whole[1].keys() ^ broken[1].keys()}")
    for key, points in whole[1].items():
        steps = [step for step, _ in broken[1][key]]
        if len(set(steps)) != len(steps):
            raise SystemExit(f"{key} has more than a point a step: {broken[1][key]}")
        if not key.startswith(("time/", "system/")) and sorted(points) != sorted(broken[1][key]):
            raise SystemExit(f"{key} differs: {points} and {broken[1][key]}")
    if len(whole[1]["reward/mean"]) != iterations:
        raise SystemExit(f"{iterations} points expected, found {whole[1]['reward/mean']}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
