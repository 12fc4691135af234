"""The models' homes: Ray actors that the flow owns.

The classes are plain; `tasks.placement` makes actors of them. torch and the library parts that
need it are imported inside, where the actor lives, so that flows load without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mempo import own
from mempo.config import Experiment
from tasks.processes import release_memory

Metrics = dict[str, float]
P = ParamSpec("P")
R = TypeVar("R")


def _stage(method: Callable[P, R]) -> Callable[P, R]:
    """A method that computes much: what it has freed goes back to the system at its end."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        finally:
            release_memory()

    return run


def _set_up(experiment: Experiment, threads: int) -> None:
    import torch
    import transformers

    own.check(experiment)  # on the machine where they will be called
    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()


class Sampler:
    """The policy that acts: engine, environment and agent loop."""

    def __init__(self, experiment: Experiment, threads: int):
        _set_up(experiment, threads)
        from mempo.agent.protocol import stop_strings
        from mempo.environments import make_world
        from mempo.policies.loading import load_codec, load_model
        from mempo.samplers.hf import TransformersSampler

        self.experiment = experiment
        self.codec = load_codec(experiment.policy, experiment.environment)
        self.model = load_model(experiment.policy, self.codec, seed=experiment.seed)
        tokens = experiment.environment.passage_tokens
        self.world = make_world(
            experiment.environment, lambda text: self.codec.shorten(text, tokens)
        )
        self.engine = TransformersSampler(
            self.model,
            self.codec,
            stop=stop_strings(experiment.agent),
            batch_size=experiment.rollout.batch_size,
        )
        self.version = 0

    def load(self, weights: Path, version: int, digest: str) -> None:
        """Take new weights; RuntimeError where they are not, bit for bit, the learner's."""
        from mempo.policies.weights import load_weights

        got = load_weights(self.model, weights)
        if got != digest:
            raise RuntimeError(
                f"weights of version {version} did not arrive: sha256 {got[:12]} in the sampler, "
                f"{digest[:12]} in the learner"
            )
        self.version = version

    @_stage
    def rollout(self, path: Path, iteration: int) -> Metrics:
        """Sample an iteration's trajectories into the rollout file `path`.

        Metrics are of all that was sampled, also of what `rollout.resample` threw away: its tokens
        were paid for, and rewards of the kept groups alone would show a selection.
        """
        from mempo.credit.resample import has_pair, has_signal, resample
        from mempo.environments.atlas import facts_of
        from mempo.evaluation.memory_quality import fact_quality
        from mempo.evaluation.metrics import rollout_metrics
        from mempo.policies.distribution import Sampling
        from mempo.records import write_rollouts

        e = self.experiment
        cycle = e.environment.objectives
        objectives = cycle[iteration % len(cycle)]

        def ask(count: int, *key: int | str) -> list:
            key = (e.seed, iteration, *key)
            return self.world.questions("train", count, objectives=objectives, key=key)

        def run(questions: Any) -> list:
            sampling = Sampling(e.rollout.temperature, e.rollout.top_p, e.rollout.top_k)
            key = (e.seed, "rollout", iteration)
            return self._run(questions, e.rollout.group_size, sampling, key)

        kept, thrown = resample(
            run(ask(e.rollout.questions)),
            lambda number, count: ask(count, "resample", number),
            run,
            rounds=e.rollout.resample,
            signal=has_pair if e.loss.policy == "dpo" else has_signal,
        )
        write_rollouts(path, kept)
        every = [*kept, *thrown]
        return {
            **rollout_metrics(every),
            **fact_quality(every, facts_of),
            "group/resampled_frac": len(thrown) / len(every),
        }

    @_stage
    def evaluate(self, path: Path, objectives: int, temperature: float, passes: int = 1) -> Metrics:
        """`passes` trajectories for each evaluation question into `path`; their token counts."""
        from mempo.evaluation.metrics import rollout_metrics
        from mempo.policies.distribution import Sampling
        from mempo.records import write_rollouts

        e = self.experiment.evaluate
        questions = self.world.questions("test", e.questions, objectives=objectives, key=(e.seed,))
        sampling = Sampling(temperature, memory_weight=e.memory_weight)
        key = (e.seed, "evaluate", str(temperature))
        trajectories = self._run(questions, passes, sampling, key)
        write_rollouts(path, trajectories)
        return rollout_metrics(trajectories)

    def decode(self, ids: list[int]) -> str:
        """The exact text of token ids."""
        return self.codec.text(ids)

    def describe(self, path: Path, limit: int, every: int = 1) -> list[dict[str, Any]]:
        """`limit` trajectories of a rollout file, each `every`-th, for the trajectory page."""
        from mempo.evaluation.describe import describe
        from mempo.records import read_rollouts

        trajectories, credit = read_rollouts(path)
        return describe(trajectories[: limit * every], credit, self.codec.text, every=every)

    def _run(self, questions: list, group: int, sampling: Any, key: tuple) -> list:
        from mempo.agent.rollout import run_trajectories

        e = self.experiment
        return run_trajectories(
            self.world,
            self.engine,
            self.codec,
            questions,
            agent=e.agent,
            rollout=e.rollout,
            reward=e.reward,
            group_size=group,
            sampling=sampling,
            key=key,
            version=self.version,
        )


class Learner:
    """The policy that is trained: scoring, updates, checkpoints."""

    def __init__(self, experiment: Experiment, threads: int):
        _set_up(experiment, threads)
        from mempo.learners.torch_learner import TorchLearner
        from mempo.policies.loading import load_codec, load_model

        self.experiment = experiment
        self.codec = load_codec(experiment.policy, experiment.environment)
        self.learner = TorchLearner(
            load_model(experiment.policy, self.codec, seed=experiment.seed),
            self.codec,
            experiment.learner,
            # A copy of the model, which only training reads.
            reference=experiment.loss.needs_reference and experiment.iterations > 0,
        )

    @_stage
    def score(self, path: Path, iteration: int) -> Metrics:
        """Add P(answer | memory), P(answer | history) and the advantages to a rollout file."""
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

    @_stage
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
        write_rollouts(path, trajectories, {"p_answer_mem": p_answer})
        return {"cost/scored_tokens": float(self.learner.tokens - before)}

    @_stage
    def train(self, path: Path, iteration: int) -> Metrics:
        """Update on a scored rollout file."""
        from mempo.learners.iteration import train_on
        from mempo.records import read_rollouts

        trajectories, credit = read_rollouts(path)
        before = self.learner.tokens
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
        )
        return {**metrics, "cost/trained_tokens": float(self.learner.tokens - before)}

    def publish(self, weights: Path) -> str:
        """Write the weights for the samplers; their digest."""
        from mempo.policies.weights import save_weights

        return save_weights(self.learner.model, weights)

    def checkpoint(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint that transformers can load as it is."""
        from mempo.learners import checkpoint

        checkpoint.write(folder, self.learner.save, state)


class ColdStart:
    """Supervised training on scripted trajectories."""

    def __init__(self, experiment: Experiment, threads: int):
        _set_up(experiment, threads)
        from mempo.agent.coldstart_data import cold_start_data
        from mempo.learners.torch_learner import TorchLearner
        from mempo.policies.loading import load_codec, load_model

        self.experiment = experiment
        codec = load_codec(experiment.policy, experiment.environment)
        settings = experiment.learner.model_copy(update={"lr": experiment.sft.lr})
        self.learner = TorchLearner(
            load_model(experiment.policy, codec, seed=experiment.seed),
            codec,
            settings,
            embedding_lr_factor=experiment.sft.embedding_lr_factor,
        )
        self.data = cold_start_data(experiment, codec)

    def facts(self) -> dict[str, Any]:
        """What there is to learn from."""
        return self.data.facts()

    @_stage
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

    def checkpoint(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint that transformers can load as it is."""
        from mempo.learners import checkpoint

        checkpoint.write(folder, self.learner.save, state)
