"""The whole configuration of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mempo.config.acting import Agent, Environment, Policy, Rollout
from mempo.config.base import AgentKind, Settings
from mempo.config.credit import Memory, Reward
from mempo.config.learning import Audit, Learner, Loss, Sft
from mempo.config.running import Checkpoint, Cluster, Evaluate, Price, Tracking


class Experiment(Settings):
    """One run, whole: what a preset fills in, a form shows and MLflow records."""

    preset: str = Field(default="", description="Name of the preset this was built from.")
    seed: int = Field(
        default=0, description="One seed for the run; every draw is a function of it."
    )
    iterations: int = Field(default=24, ge=0, description="RL iterations; 0 only evaluates.")
    pipeline: Literal["sync", "one_step_off"] = Field(
        default="sync",
        description="'one_step_off' samples the next iteration's rollouts while this one trains: "
        "by weights one update older than those that then train on them (`staleness/steps`), so it "
        "needs loss.importance 'truncated' (DPO does not). The learner keeps a copy of those "
        "weights for the audit. It gains where samplers and learner have cores or GPUs of their "
        "own, or where tool calls wait.",
    )
    environment: Environment = Environment()
    policy: Policy = Policy()
    agent: Agent = Agent()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    memory: Memory = Memory()
    loss: Loss = Loss()
    learner: Learner = Learner()
    audit: Audit = Audit()
    sft: Sft = Sft()
    evaluate: Evaluate = Evaluate()
    price: Price = Price()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.evaluate.memory_weight != 1 and not self.agent.remembers:
            raise ValueError(
                f"evaluate.memory_weight is set, but agent.kind '{self.agent.kind}' writes no "
                "memory; leave it out"
            )
        if self.evaluate.memory_weight != 1 and self.rollout.engine != "transformers":
            raise ValueError(
                "evaluate.memory_weight mixes the logits of two prompts, which "
                f"rollout.engine '{self.rollout.engine}' cannot; set it to 'transformers'"
            )
        if self.cluster.learners > 1 and self.learner.backend == "torch":
            raise ValueError(
                f"cluster.learners is {self.cluster.learners}, and learner.backend 'torch' is one "
                "process; set it to 'deepspeed', or cluster.learners to 1"
            )
        if self.pipeline != "sync" and not self.loss.corrected and self.loss.policy != "dpo":
            raise ValueError(
                f"pipeline '{self.pipeline}' trains on rollouts of older weights, which "
                "loss.importance 'truncated' corrects for; set it, or pipeline to 'sync'"
            )
        if self.rollout.engine == "vllm" and self.rollout.temperature > 2:
            raise ValueError(
                f"rollout.temperature is {self.rollout.temperature:g}, and vLLM takes at most 2; "
                "lower it, or set rollout.engine to 'transformers'"
            )
        if self.rollout.resample and self.memory.gain_bonus > 0:
            raise ValueError(
                "rollout.resample replaces groups of equal rewards as soon as they are sampled, "
                "but memory.gain_bonus adds to rewards only after scoring; set one of them to 0"
            )
        pooled = self.algorithm == "mempo" and self.memory.group == "question"
        if self.iterations and self.rollout.group_size == 1 and not pooled:
            raise ValueError(
                "rollout.group_size is 1, and a trajectory alone in its group is neither better "
                "nor worse than another, so nothing would be learned; set it to 2 or more (only "
                "A^M with memory.group=question compares the steps of one trajectory)"
            )
        self._check_best()
        return self

    def _check_best(self) -> None:
        """The metric of `checkpoint.best` has to be measured during training."""
        area, _, name = self.checkpoint.best.partition("/n")
        if not area:
            return
        k, e = int(name.partition("/")[0]), self.evaluate
        if k not in e.objectives or (area == "eval_sampled" and not e.sampled):
            raise ValueError(
                f"checkpoint.best '{self.checkpoint.best}' is not measured: evaluate.objectives is "
                f"{list(e.objectives)} and evaluate.sampled is {e.sampled}; name one that is"
            )
        if not e.every:
            raise ValueError(
                "checkpoint.best needs evaluations during training: set evaluate.every to a "
                "number of iterations"
            )

    @property
    def taught(self) -> tuple[AgentKind, ...]:
        """The agents that a cold start teaches: on the atlas one policy learns to be several."""
        kind = self.agent.kind
        return self.sft.kinds(kind) if self.environment.name == "atlas" else (kind,)

    @property
    def credited_memory(self) -> Memory:
        """`memory` as the loss uses it: DPO knows no advantages, A^M has weight 0 in it."""
        if self.loss.policy != "dpo":
            return self.memory
        return self.memory.model_copy(update={"weight": 0.0, "schedule": "constant"})

    @property
    def algorithm(self) -> Literal["grpo", "mempo", "dpo"]:
        """The tag of the run: without a memory, or without its advantage, MemPO is GRPO."""
        if self.loss.policy == "dpo":
            return "dpo"
        # A single iteration is the first one, whatever the weight would go to.
        weighted = self.memory.trained if self.iterations > 1 else self.memory.weight > 0
        return "mempo" if self.agent.remembers and weighted else "grpo"
