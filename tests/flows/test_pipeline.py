"""The training loop with rollouts sampled ahead, and without: what runs beside what, and when."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from conf.load import load
from mempo.config import Experiment

# Prefect, Ray and MLflow warn in ways that are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")

ITERATIONS = 4
OVERLAPPED = ("pipeline=one_step_off", "loss.importance=truncated")
REWARD = """
import time
from pathlib import Path
held = Path(__file__).with_name("held")
def reward(trajectory):
    last = time.monotonic() + 60
    while held.exists() and time.monotonic() < last:
        time.sleep(0.05)
    return trajectory.f1 + 0.1 * trajectory.format
"""


def experiment(*overrides: str) -> Experiment:
    """A policy that answers at times and learns fast, and a reward that can be held up."""
    world = ("environment.entities=60", "environment.attributes=8", "environment.values=25")
    room = ("rollout.max_step_tokens=96", "rollout.max_prompt_tokens=512", "learner.lr=1e-3")
    less = ("evaluate.before=false", "evaluate.sampled=false", "evaluate.objectives=[1]")
    settings = (
        *("cluster.cpus=2", "policy.model=builtin:atlas-sft", f"iterations={ITERATIONS}"),
        *(
            "rollout.group_size=4",
            "environment.objectives=[2]",
            "reward.function=held_reward:reward",
        ),
    )
    return load("test", overrides=[*settings, *world, *room, *less, *overrides], seed=3)


@pytest.fixture(scope="module")
def trained(home: Path) -> SimpleNamespace:
    """One run of each kind: `sync` and `overlapped`, with `stages` as [(name, start, end)].

    In the second what is sampled ahead gets its rewards only after the update of the iteration
    before, so this hangs where an update waits for the next rollout.
    """
    from flows.train import train
    from tasks import stages

    (home / "code" / "held_reward.py").write_text(REWARD)
    held, start = home / "code" / "held", stages.start

    def begin(stage: Any, *args: Any) -> Any:
        held.touch()
        return start(stage, *args)

    def run(stage: Any, *args: Any) -> Any:
        result = start(stage, *args)()
        if stage is stages.train:
            held.unlink(missing_ok=True)
        return result

    def trained(*settings: str) -> SimpleNamespace:
        result = train(experiment(*settings))
        return SimpleNamespace(result=result, run_id=result.run_id, stages=stages_of(result.run_id))

    sync = trained()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "start", begin)
        patch.setattr(stages, "run", run)
        return SimpleNamespace(sync=sync, overlapped=trained(*OVERLAPPED))


def tracker():
    from tasks.tracking import Tracker

    return Tracker()


def points(run_id: str, key: str) -> list[float]:
    found = {m.step: m.value for m in tracker().metric_history(run_id, key)}
    return [found[n] for n in sorted(found)]


def stages_of(run_id: str) -> list[tuple[str, float, float]]:
    """The stages of a run by their start, with the times that Prefect has of them."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    flow_run = UUID(tracker().run_info(run_id).tags["prefect.flow_run_id"])
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
        )
    times = []
    for run in found:
        assert run.start_time and run.end_time
        name = run.name.rpartition("-")[0]
        times.append((name, run.start_time.timestamp(), run.end_time.timestamp()))
    return sorted(times, key=lambda stage: stage[1])


def rollouts(run: SimpleNamespace, number: int) -> pd.DataFrame:
    folder = Path(run.result.folder) / "iterations" / f"{number:06d}"
    return pd.read_parquet(folder / "rollouts.parquet")


def test_in_sync_each_stage_begins_when_the_one_before_it_is_over(trained: SimpleNamespace) -> None:
    stages = trained.sync.stages
    once = ["rollout", "score", "train", "checkpoint"]
    assert [name for name, _, _ in stages] == [*once * ITERATIONS, "evaluate"]
    for (_, _, end), (_, start, _) in pairwise(stages):
        assert end <= start
    assert points(trained.sync.run_id, "staleness/steps") == [0] * ITERATIONS
    assert [set(rollouts(trained.sync, n + 1).policy_version) for n in range(ITERATIONS)] == [
        {n} for n in range(ITERATIONS)
    ]


def test_the_next_rollout_runs_beside_scoring_and_training(trained: SimpleNamespace) -> None:
    of = {
        kind: [stage[1:] for stage in trained.overlapped.stages if stage[0] == kind]
        for kind in ("rollout", "train", "take over")
    }
    assert len(of["rollout"]) == len(of["train"]) == ITERATIONS
    assert len(of["take over"]) == ITERATIONS - 1
    for n in range(ITERATIONS - 1):
        (begin, end), (updating, updated) = of["rollout"][n + 1], of["train"][n]
        assert begin < updating and updated < end
        assert of["take over"][n][0] >= max(end, updated)  # new weights when both are over


def test_rollouts_are_one_update_old_and_never_of_two_weights(trained: SimpleNamespace) -> None:
    run = trained.overlapped
    assert points(run.run_id, "staleness/steps") == [0, *[1] * (ITERATIONS - 1)]
    versions = [set(rollouts(run, n).policy_version) for n in range(1, ITERATIONS + 1)]
    assert versions == [{0}, *({n} for n in range(ITERATIONS - 1))]


def test_the_audit_is_that_of_the_weights_that_sampled(trained: SimpleNamespace) -> None:
    """To 1e-3, while the update in between moved the same log-probs by far more."""
    run_id = trained.overlapped.run_id
    audits = points(run_id, "audit/logprob_diff_max")
    assert len(audits) == ITERATIONS and max(audits) < 1e-3
    moved = [abs(mean - 1) for mean in points(run_id, "loss/importance_mean")]
    assert moved[0] < 1e-4 and max(moved[1:]) > 1e-3


def test_both_begin_alike_and_ask_the_same_questions(trained: SimpleNamespace) -> None:
    first = [rollouts(run, 1).output_ids.map(list).tolist() for run in vars(trained).values()]
    assert first[0] == first[1]
    for n in range(1, ITERATIONS + 1):
        asked = [rollouts(run, n).question_id.unique().tolist() for run in vars(trained).values()]
        assert asked[0] == asked[1]


def test_the_time_of_an_iteration_is_that_of_what_nothing_else_ran_beside(
    trained: SimpleNamespace,
) -> None:
    run_id = trained.overlapped.run_id
    names = ("rollout", "score", "train", "wait", "take_over", "checkpoint", "iteration")
    t = {name: np.array(points(run_id, f"time/{name}_s")) for name in names}
    assert len(t["wait"]) == len(t["take_over"]) == ITERATIONS - 1
    assert (t["wait"] < t["rollout"][1:]).all()
    parts = t["score"] + t["train"] + t["checkpoint"]
    parts[:-1] += t["wait"] + t["take_over"]
    parts[0] += t["rollout"][0]  # the others were sampled beside an iteration before
    np.testing.assert_allclose(t["iteration"], parts)


def test_a_run_whose_update_fails_leaves_no_rollout_behind(trained: SimpleNamespace) -> None:
    import time

    import ray

    from flows.train import train

    with pytest.raises(Exception, match=r"audit\.max_diff"):
        train(experiment(*OVERLAPPED, "audit.max_diff=1e-30"), name="to fail")
    assert "to fail" in [r.name for r in tracker().find(status="FAILED")]
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


def test_models_that_are_lost_change_nothing(
    trained: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones go on with the rollouts that the lost ones had sampled ahead."""
    import ray

    from flows.train import train
    from flows.training import Training

    whole, killed = Training._iterate, []

    def iterate(self: Training, number: int) -> dict[str, float]:
        if number == 3 and not killed:
            killed.append(number)
            ray.kill(self.models.samplers[0])
        return whole(self, number)

    monkeypatch.setattr(Training, "_iterate", iterate)
    again = train(experiment(*OVERLAPPED), name="lost and gone on")
    assert killed
    for key in ("reward/mean", "staleness/steps", "loss/policy", "audit/logprob_diff_max"):
        assert points(again.run_id, key) == points(trained.overlapped.run_id, key), key
    weights = [
        (Path(r.checkpoint) / "model.safetensors").read_bytes()
        for r in (again, trained.overlapped.result)
    ]
    assert weights[0] == weights[1]
