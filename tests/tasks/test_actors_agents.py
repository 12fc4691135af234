"""Every agent with every algorithm that makes sense for it: two whole iterations."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from conf.load import load
from mempo.config import AgentKind
from mempo.records import read_rollouts
from tasks.learner_actors import Learner
from tasks.sampler_actor import Sampler

AGENTS: dict[AgentKind, list[str]] = {
    "self_memory": ["agent.history=memory"],
    "react": [],
    "truncation": ["agent.window=2"],
    "summary": ["agent.summary_every=1"],
    "retrieval": [],
    "external": ["agent.fold_every=1"],
}
WITHOUT_MEMORY = [["memory.weight=0"], ["loss.policy=dpo"]]
WITH_MEMORY = [
    ["memory.reward=contrast", "memory.group=question"],
    ["memory.reward=posterior", "memory.group=step", "memory.schedule=cosine"],
    ["agent.grains=2"],
]
LOSSES = [
    ["loss.policy=gspo"],
    ["loss.policy=cispo", "loss.clip_high=0.28", "loss.kl=0.01"],
    ["loss.aggregation=constant", "reward.scale=none", "loss.entropy=0.01"],
    ["loss.importance=truncated", "rollout.top_k=20"],
]
CASES = [
    *((kind, options) for kind in AGENTS for options in WITHOUT_MEMORY),
    *((kind, options) for kind in ("self_memory", "summary") for options in WITH_MEMORY),
    *(("self_memory", options) for options in LOSSES),
]


@pytest.mark.parametrize(
    ("kind", "options"), CASES, ids=lambda v: v if isinstance(v, str) else v[0]
)
def test_two_iterations(tmp_path: Path, kind: AgentKind, options: list[str]) -> None:
    settings = [f"agent.kind={kind}", *AGENTS[kind], *options]
    experiment = load("test", overrides=settings)
    sampler, learner = Sampler(experiment, threads=1), Learner(experiment, threads=1)
    weights = tmp_path / "weights.safetensors"
    for iteration in range(2):
        path = tmp_path / f"{iteration}.parquet"
        metrics = sampler.rollout(path, iteration)
        metrics |= learner.score(path, iteration)
        metrics |= learner.train(path, iteration)
        sampler.load(weights, iteration + 1, learner.publish(weights))
        assert metrics["audit/logprob_diff_max"] < 1e-3
        assert metrics["cost/generated_tokens"] > 0
        assert isfinite(metrics["loss/policy"]) and isfinite(metrics["loss/grad_norm"])
        versions = {s.policy_version for t in read_rollouts(path)[0] for s in t.steps}
        assert versions == {iteration}
