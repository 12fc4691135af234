"""Whole flows on other engines and with models, samplers and functions of one's own."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from conf.load import load
from mempo.config import Experiment

# Prefect, Ray and MLflow warn in ways that are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")

AFTER = ("evaluate.before=false", "evaluate.objectives=[1]")


def experiment(*overrides: str, seed: int = 3) -> Experiment:
    return load("test", overrides=["cluster.cpus=2", *overrides], seed=seed)


def tracker():
    from tasks.tracking import Tracker

    return Tracker()


def points(run_id: str, key: str) -> dict[int, float]:
    return {m.step: m.value for m in tracker().metric_history(run_id, key)}


def test_functions_of_one_s_own_run_in_the_actors_of_the_run(home: Path):
    from flows.train import train

    module = home / "code" / "own_of_a_flow.py"
    module.write_text(
        "import os\n"
        "def reward(trajectory): return 3.0 * trajectory.rollout\n"
        "def memory(question, steps, p_mem_S, p_full_S):\n"
        "    with open(__file__ + '.asked', 'a') as asked:\n"
        "        print(os.getpid(), len(steps), len(p_mem_S), len(p_full_S), file=asked)\n"
        "    return [0.0] * len(steps)\n"
        "def view(agent, codec, question, head, steps):\n"
        "    return [*head, *codec.encode(f'<store>{len(steps)}</store>')]\n"
        "def tool(question, query): return f'{len(query)}'\n"
    )
    paths = {
        "reward.function": "own_of_a_flow:reward",
        "memory.function": "own_of_a_flow:memory",
        "agent.function": "own_of_a_flow:view",
        "environment.tool": "own_of_a_flow:tool",
    }
    own = [f"{setting}={path}" for setting, path in paths.items()]
    world = ("environment.entities=60", "environment.attributes=8", "environment.values=25")
    shipped = ("policy.model=builtin:atlas-sft", *world)  # a policy that calls its tool
    less = ("iterations=1", "evaluate.before=false", "evaluate.sampled=false")
    result = train(experiment(*shipped, *less, "rollout.max_step_tokens=48", *own))
    assert points(result.run_id, "reward/mean") == {1: 1.5}  # of rollouts 0 and 1
    info = tracker().run_info(result.run_id)
    for setting, path in paths.items():
        assert info.params[setting] == path
        assert info.tags[f"mempo.own.{setting}"] == hashlib.sha256(module.read_bytes()).hexdigest()
    table = pd.read_parquet(Path(result.folder) / "iterations" / "000001" / "rollouts.parquet")
    assert (table.reward == 3.0 * table.rollout).all()
    extra = table.prompt_ids.str.len() - table.head_tokens
    assert (extra == 3).all()  # <store>, a number, </store>
    calls = table[table.observation != ""]
    assert len(calls) > 0
    assert (calls.observation == calls.action_text.str.len().astype(str)).all()
    lines = Path(f"{module}.asked").read_text().splitlines()
    asked = [line.split() for line in lines]
    assert [tuple(map(int, line[1:])) for line in asked] == [
        (len(steps),) * 3 for _, steps in table.groupby(["question_id", "rollout"], sort=False)
    ]
    assert str(os.getpid()) not in {line[0] for line in asked}


def test_two_samplers_share_the_questions_and_change_nothing(cold: SimpleNamespace):
    from flows.train import train
    from mempo.records import read_rollouts

    small = (cold.start, "rollout.questions=3", "iterations=1", "rollout.resample=1", *AFTER)
    one, two = (train(experiment(*small, f"cluster.samplers={n}")) for n in (1, 2))
    for name in ("rollouts", "evaluate-n1-greedy", "evaluate-n1-sampled"):
        found = []
        for result in (one, two):
            file = Path(result.folder) / "iterations" / "000001" / f"{name}.parquet"
            found.append([(t.question.id, t.rollout, t.answer) for t in read_rollouts(file)[0]])
            assert {f.name for f in file.parent.glob(f"{name}*.parquet")} == {file.name}
        assert found[0] == found[1]
    for key in ("reward/mean", "cost/generated_tokens", "group/resampled_frac"):
        assert points(one.run_id, key) == points(two.run_id, key)


@pytest.mark.slow
def test_two_ranks_of_deepspeed_train_as_one_process_of_torch(cold: SimpleNamespace):
    from flows.sft import sft
    from flows.train import train

    ranks = ("learner.backend=deepspeed", "learner.deepspeed=zero2", "cluster.learners=2")
    room = ("cluster.learner_cpus=0.25", "rollout.max_step_tokens=48", "iterations=1", *AFTER)
    one = train(experiment(cold.start, *room))
    two = train(experiment(cold.start, *room, *ranks))
    for key in ("loss/policy", "loss/grad_norm", "memory/p_answer", "cost/trained_tokens"):
        assert points(two.run_id, key)[1] == pytest.approx(points(one.run_id, key)[1], rel=1e-4)
    assert max(points(two.run_id, "audit/logprob_diff_max").values()) < 1e-3
    assert (Path(two.checkpoint) / "model.safetensors").is_file()
    result = sft(experiment(*ranks, "cluster.learner_cpus=0.25"))
    losses = points(result.run_id, "sft/loss"), points(cold.result.run_id, "sft/loss")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_vllm_acts_in_place_of_transformers(cold: SimpleNamespace):
    from flows.train import train

    vllm = ("rollout.engine=vllm", "rollout.cache_gib=0.1", *AFTER)
    result = train(experiment(cold.start, *vllm))
    for key in ("audit/logprob_diff_max", "reward/mean", "cost/generated_tokens"):
        assert sorted(points(result.run_id, key)) == [1, 2]
    assert max(points(result.run_id, "audit/logprob_diff_max").values()) < 1e-3
    assert result.metrics is not None and result.metrics["eval/n1/steps"] >= 1


def test_fault_37_a_dead_model_ends_the_waiting_with_its_name_and_the_others_are_freed(
    cold: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    import ray

    from flows.train import train
    from flows.training import Training
    from tasks.placement import ModelLost, wait_all

    whole = Training._iterate

    def iterate(self: Training, number: int) -> dict[str, float]:
        if number == 2:
            ray.kill(self.models.samplers[0])
        return whole(self, number)

    monkeypatch.setattr(Training, "_iterate", iterate)
    with pytest.raises(ModelLost, match="stage 'rollout': its actor died"):
        train(experiment(cold.start, "cluster.recoveries=0", "evaluate.before=false"), name="lost")
    [run] = [r for r in tracker().find({"mempo.kind": "train"}) if r.name == "lost"]
    assert run.status == "FAILED" and "its actor died" in run.tags["mempo.reason"]
    assert f"to go on: mempo train --resume {run.run_id}" in capsys.readouterr().err
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)

    @ray.remote(num_cpus=0)
    def forever() -> None:
        time.sleep(600)

    calls = [forever.remote() for _ in range(2)]
    cluster = experiment("cluster.timeout_s=1").cluster
    with pytest.raises(TimeoutError, match="stage 'nap' took longer than cluster"):
        wait_all(calls, cluster, "nap")
    for call in calls:
        ray.cancel(call, force=True)
