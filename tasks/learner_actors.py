"""The homes of the policy that is trained: by reinforcement, and on scripts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from mempo.config import Experiment
from tasks.actors import Metrics, computing, node, set_up


class _Rank(ABC):
    """A process of the learner: the only one, or one of several that `join`."""

    learner: Any  # TorchLearner, or DeepSpeedLearner

    def __init__(self, experiment: Experiment, threads: int):
        set_up(experiment, threads)
        self.experiment = experiment
        self.rank = 0
        if experiment.learner.backend == "torch":
            self._build()

    def address(self) -> str:
        """'host:port' on this machine by which other ranks find this one."""
        import socket

        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, rank: int, ranks: int, address: str) -> None:
        """Connect to the other ranks, at `address` of the first; where there is no need, nothing.

        Returns when all have joined.
        """
        if self.experiment.learner.backend == "torch":
            return
        from mempo.learners.deepspeed_learner import join_ranks

        join_ranks(rank, ranks, address)
        self.rank = rank
        self._build()

    def node(self) -> str:
        """The id of the Ray node that it runs on."""
        return node()

    def checkpoint(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint that transformers can load as it is."""
        from mempo.learners import checkpoint

        if self.rank == 0:
            checkpoint.write(folder, self.learner.save, state)
        else:  # it has its part of the weights to give
            self.learner.save(folder)

    @abstractmethod
    def _build(self) -> None:
        """Make `self.learner`, when all ranks are there."""

    def _make(self, settings: Any, codec: Any, **options: Any) -> Any:
        """The learner of `learner.backend` over `policy.model`."""
        from mempo.learners.torch_learner import TorchLearner
        from mempo.policies.loading import load_model

        kind = TorchLearner
        if self.experiment.learner.backend == "deepspeed":
            from mempo.learners.deepspeed_learner import DeepSpeedLearner

            kind = DeepSpeedLearner
        e = self.experiment
        model = load_model(e.policy, codec, seed=e.seed)
        if e.learner.lora_rank:
            from mempo.policies.lora import add_adapters

            model = add_adapters(model, e.learner.lora_rank, seed=e.seed)
        return kind(model, codec, settings, **options)


class Learner(_Rank):
    """The policy that is trained: scoring, updates, checkpoints."""

    def _build(self) -> None:
        from mempo.policies.loading import load_codec

        e = self.experiment
        self.codec = load_codec(e.policy, e.environment)
        # The reference is a copy of the model, which only training reads.
        reference = e.loss.needs_reference and e.iterations > 0
        previous = e.pipeline == "one_step_off" and e.iterations > 1
        self.learner = self._make(e.learner, self.codec, reference=reference, previous=previous)

    @computing
    def score(self, path: Path, iteration: int) -> Metrics:
        """Add P(answer | memory), P(answer | history) and the advantages to a rollout file.

        `cost/scored_tokens` counts tokens that really went through the model: what rows share once
        a micro-batch, padding not; so does `cost/trained_tokens` of `train`, all its passes.
        """
        from mempo.credit.assign import assign_credit
        from mempo.credit.schedule import memory_weight, scoring
        from mempo.evaluation.memory_quality import scored_quality
        from mempo.records import read_rollouts, write_rollouts

        memory = self.experiment.credited_memory
        trajectories, _ = read_rollouts(path)
        before = self.learner.tokens
        due = scoring(memory, iteration)
        credit = assign_credit(
            self.codec,
            trajectories,
            self.learner.logprobs,
            memory,
            score=due.memory,
            full=due.history,
            grains=self.experiment.agent.grains,
            scale=self.experiment.reward.scale,
        )
        if self.rank == 0:
            write_rollouts(path, trajectories, credit.columns())
        metrics = {
            **scored_quality(trajectories, credit.p_answer_mem, credit.p_answer_full),
            "group/zero_std_frac": credit.zero_std,
            "cost/scored_tokens": float(self.learner.tokens - before),
        }
        if self.experiment.agent.remembers:
            metrics["memory/weight"] = memory_weight(memory, iteration, self.experiment.iterations)
        if memory.gain_bonus > 0:
            metrics["reward/gain_bonus"] = credit.mean_gain_bonus
        return metrics

    @computing
    def score_memories(self, path: Path) -> Metrics:
        """Add P(answer | memory) to an evaluation's rollout file."""
        from mempo.credit.scoring import score_questions
        from mempo.records import read_rollouts, write_rollouts

        trajectories, _ = read_rollouts(path)
        before = self.learner.tokens
        scores = score_questions(
            self.codec,
            [(t.question, [t.steps]) for t in trajectories],
            self.learner.logprobs,
            full=False,
        )
        p_answer = [p for group in scores for steps in group for p, _ in steps]
        if self.rank == 0:
            write_rollouts(path, trajectories, {"p_answer_mem": p_answer})
        return {"cost/scored_tokens": float(self.learner.tokens - before)}

    @computing
    def train(self, path: Path, iteration: int, audited: bool = False) -> Metrics:
        """Update on a scored rollout file; `audited`: by `audit`, for older weights sampled it."""
        from mempo.learners.iteration import train_on
        from mempo.records import read_rollouts

        trajectories, credit = read_rollouts(path)
        before = self.learner.tokens
        if self.learner.previous is not None:
            self.learner.keep()
        adv_mem: Any = credit["adv_mem"]
        if "adv_facts" in credit:
            adv_mem = list(zip(credit["adv_summary"], credit["adv_facts"], strict=True))
        metrics = train_on(
            self.learner,
            trajectories,
            credit["adv_traj"],
            adv_mem,
            self.experiment,
            iteration,
            audited=audited,
        )
        return {**metrics, "cost/trained_tokens": float(self.learner.tokens - before)}

    @computing
    def audit(self, path: Path) -> Metrics:
        """Audit a rollout file that was sampled by the weights before the last update."""
        from mempo.learners.iteration import audit_rollouts
        from mempo.records import read_rollouts

        before = self.learner.tokens
        metrics = audit_rollouts(self.learner, read_rollouts(path)[0], self.experiment)
        return {**metrics, "cost/trained_tokens": float(self.learner.tokens - before)}

    def publish(self, weights: Path) -> Any:
        """Write the weights for the samplers; by what they prove that they took them (`Proof`)."""
        from mempo.policies.weights import Proof, probe_row, save_weights

        whole = self.learner.weights()
        digest = save_weights(whole, weights) if self.rank == 0 else ""
        probe = probe_row(len(self.codec.tokenizer))
        (logprobs,) = self.learner.logprobs([probe])
        return Proof(digest, probe, logprobs)

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.learner.restore(folder)


class ColdStart(_Rank):
    """Supervised training on scripted trajectories."""

    def _build(self) -> None:
        from mempo.agent.coldstart_data import cold_start_data
        from mempo.policies.loading import load_codec

        e = self.experiment
        codec = load_codec(e.policy, e.environment)
        settings = e.learner.model_copy(update={"lr": e.sft.lr})
        factor = e.sft.embedding_lr_factor
        self.learner = self._make(settings, codec, embedding_lr_factor=factor)
        self.data = cold_start_data(e, codec)

    def facts(self) -> dict[str, Any]:
        """What there is to learn from."""
        return self.data.facts()

    @computing
    def run(self, start: int, stop: int) -> Metrics:
        """Optimiser steps start..stop-1; the mean loss and the tokens."""
        from mempo.learners.supervise import learning_rate

        sft = self.experiment.sft
        losses = []
        before = self.learner.tokens
        for step in range(start, stop):
            rows = self.data.batch(step)
            lr = learning_rate(sft, step)
            losses.append(self.learner.supervise(rows, lr, sft.temperature))
        return {
            "sft/loss": sum(losses) / max(len(losses), 1),
            "cost/trained_tokens": float(self.learner.tokens - before),
        }

    def validate(self) -> Metrics:
        """Loss on scripts that are never trained on; what right and empty memories are worth."""
        import numpy as np

        values = self.learner.logprobs(self.data.held_out())
        metrics = {"sft/held_out_loss": float(-np.concatenate(values).mean())}
        if not (probes := self.data.probes()):
            return metrics
        right, empty = (
            np.array([np.exp(v.mean()) for v in self.learner.logprobs([p[i] for p in probes])])
            for i in (0, 1)
        )
        return {
            **metrics,
            "sft/p_answer_right_memory": float(right.mean()),
            "sft/p_answer_empty_memory": float(empty.mean()),
            "sft/right_beats_empty_frac": float((right > empty).mean()),
        }
