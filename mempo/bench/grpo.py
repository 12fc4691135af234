"""A whole GRPO step of one turn, against TRL's GRPOTrainer: rollout, reward, update, new weights.

Same model, prompts, lengths, reward, rows an update and loss (DAPO's mean over tokens). Ours does
what a run does: it also audits the sampler's log-probs and takes the weights to the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mempo.bench.race import Lap, Part, Say, race, timed
from mempo.bench.rollout import (
    GROUP,
    OUTPUT,
    PROMPT,
    QUESTIONS,
    engines,
    prompts,
    requests,
    sampler,
)
from mempo.bench.subject import Subject
from mempo.config import Experiment, Learner, Loss, Memory, Policy
from mempo.credit.advantage import trajectory_advantage
from mempo.learners.iteration import train_on
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.distribution import Sampling
from mempo.policies.weights import save_weights
from mempo.types import Completion, Question, Step, Trajectory

LR = 1e-6  # TRL's default
MICRO_TOKENS = 1536  # a question's prompt and its eight outputs
TRL_MICRO_BATCHES = (8, 4)
TRL_DEFAULT = 8  # its per_device_train_batch_size


def reward(ids: Sequence[int]) -> float:
    """Any number that differs between outputs: the share of even ids."""
    return float(np.mean([i % 2 == 0 for i in ids]))


class Ours:
    """The steps of this house, on one engine."""

    def __init__(self, subject: Subject, engine: str, sizes: dict[str, int], dtype: str):
        self.sizes = sizes
        self.prompts = prompts(subject, sizes["questions"], sizes["prompt"])
        rows, tokens = sizes["questions"] * sizes["group"], sizes["prompt"] + sizes["output"]
        self.sampler = sampler(subject, engine, dtype=dtype, tokens=tokens, rows=rows)
        settings = Learner(lr=LR, micro_tokens=MICRO_TOKENS, weight_decay=0.0, beta2=0.999)
        self.learner = TorchLearner(subject.model(dtype), subject.codec, settings)
        self.experiment = Experiment(
            policy=Policy(dtype=dtype),  # pyright: ignore[reportArgumentType]
            learner=settings,
            loss=Loss(aggregation="token_mean"),
            memory=Memory(weight=0.0),
        )
        self.turn = 0
        self.parts: dict[str, list[float]] = {}  # seconds of each, a step

    def step(self) -> dict[str, float]:
        sizes = self.sizes
        asked = requests(self.prompts, sizes["group"], sizes["output"], self.turn)
        done: list[Completion] = []
        self._timed("rollout", lambda: done.extend(self.sampler.generate(asked, Sampling())))
        metrics: dict[str, float] = {}
        self._timed("train", lambda: metrics.update(self.update(done)))
        self._timed("weights", self.publish)
        self.turn += 1
        return metrics

    def update(self, done: Sequence[Completion]) -> dict[str, float]:
        """Audit and train on completions, in the order of `requests`."""
        group, trajectories, advantages = self.sizes["group"], [], []
        for q, prompt in enumerate(self.prompts):
            question = Question(f"q{q}", "", 1, [[""]])
            members = done[q * group : (q + 1) * group]
            for g, one in enumerate(members):
                step = Step(
                    prompt, len(prompt), one.ids, one.logprobs, one.finish_reason, [], None,
                    "none", "", True,
                )  # fmt: skip
                earned = reward(one.ids)
                trajectories.append(Trajectory(question, g, [step], "answered", reward=earned))
            advantages += list(trajectory_advantage([t.reward for t in trajectories[-group:]]))
        zeros = [0.0] * len(trajectories)
        return train_on(self.learner, trajectories, advantages, zeros, self.experiment, self.turn)

    def publish(self) -> None:
        with TemporaryDirectory(prefix="mempo-bench-") as folder:
            path = Path(folder) / "weights.safetensors"
            save_weights(self.learner.weights(), path)
            self.sampler.load(path)

    def _timed(self, part: str, work: Callable[[], Any]) -> None:
        self.parts.setdefault(part, []).append(timed(work).wall)


def measure(
    subject: Subject,
    *,
    rounds: int,
    say: Say,
    questions: int = QUESTIONS,
    group: int = GROUP,
    prompt: int = PROMPT,
    output: int = OUTPUT,
    dtype: str = "bfloat16",
    micro_batches: Sequence[int] = TRL_MICRO_BATCHES,
) -> Part:
    """Our step on the last of `engines()`, against TRL as it comes and tuned."""
    sizes = {"questions": questions, "group": group, "prompt": prompt, "output": output}
    found = Part()
    engine = engines()[-1]
    ours, name = Ours(subject, engine, sizes, dtype), f"grpo, ours on {engine}"
    arms: dict[str, Any] = {name: ours.step}
    if not find_spec("trl"):
        found.facts["grpo, TRL"] = "TRL is not installed: pip install 'mempo[test]'"
        say(str(found.facts["grpo, TRL"]))
        found.laps = race(arms, rounds=rounds, say=say)
        _add_parts(found, ours, name)
        return found
    from mempo.bench.trl_step import TrlStep

    rows = questions * group
    asked = prompts(subject, questions, prompt)

    def trl(micro_batch: int, checkpointing: bool) -> TrlStep:
        return TrlStep(
            subject, asked, reward, group=group, output=output, dtype=dtype,
            micro_batch=micro_batch, checkpointing=checkpointing,
        )  # fmt: skip

    tries: dict[int, float] = {}
    for size in (size for size in micro_batches if size <= rows and rows % size == 0):
        trainer = trl(size, False)
        lap: Lap = trainer.step()
        tries[size] = lap.cpu
        say(f"grpo, TRL without checkpointing, micro-batches of {size}: {lap.cpu:.1f} CPU-s")
        del trainer
    best = min(tries, key=tries.__getitem__)
    found.facts["grpo, TRL's best micro-batch"] = best
    peers = {"grpo, TRL": trl(gcd(TRL_DEFAULT, rows), True), "grpo, TRL tuned": trl(best, False)}
    arms |= {peer: one.step for peer, one in peers.items()}
    found.laps = race(arms, rounds=rounds, say=say)
    _add_parts(found, ours, name)
    for peer, one in peers.items():
        found.facts[f"{peer}, tokens a step"] = one.tokens
    found.compare("grpo_step_vs_trl", "grpo, TRL", name)
    found.compare("grpo_step_vs_trl_tuned", "grpo, TRL tuned", name)
    return found


def _add_parts(found: Part, ours: Ours, name: str) -> None:
    """What the steps of ours consist of; the warm-up is left out."""
    for part, seconds in ours.parts.items():
        found.facts[f"{name}, {part} s"] = float(np.median(seconds[1:]))
