"""How worth becomes an update; and the cold start before it."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, field_validator, model_validator

from mempo.config.base import AgentKind, Fraction, Positive, Settings


class Loss(Settings):
    """The loss: a clipped policy term, a KL penalty, an entropy bonus; or DPO's. Dr. GRPO is
    aggregation 'constant' with reward.scale 'none'; DAPO's clip-higher is `clip_high`."""

    policy: Literal["ppo_clip", "gspo", "cispo", "dpo"] = Field(
        default="ppo_clip",
        description="'ppo_clip': clipped ratio of each token. 'gspo': of each step, the geometric "
        "mean over its tokens, in a far narrower clip range. 'cispo': no token loses its gradient; "
        "its ratio is only a weight, capped at 1 + clip_high. 'dpo': no advantages; in each group, "
        "trajectories that got every objective exactly right in good form are preferred to ones "
        "that earned less, or that asked their store more often.",
    )
    beta: float = Field(
        default=0.1, gt=0.0, description="DPO: how strongly it is held to the start policy."
    )
    clip: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Clip range of the ratio: 1 - clip to 1 + clip. 0: the policy's own, 0.2 for "
        "'ppo_clip' and 'cispo'; for 'gspo' 3e-4, and 4e-4 upwards.",
    )
    clip_high: float = Field(
        default=0.0,
        ge=0.0,
        description="Upper clip range where it differs (clip-higher of DAPO: 0.28); 0: `clip`.",
    )
    kl: float = Field(default=0.0, ge=0.0, description="Coefficient of KL(policy || start policy).")
    kl_estimator: Literal["k2", "k3"] = Field(
        default="k2",
        description="k2 has the exact gradient of KL(pi || ref), k3 that of KL(ref || pi). k1 is "
        "refused: as a loss its expected gradient is zero.",
    )
    entropy: float = Field(
        default=0.0,
        ge=0.0,
        description="Coefficient of the entropy bonus, in nats a token over the whole vocabulary "
        "at temperature 1, weighted as the tokens of the loss.",
    )
    aggregation: Literal["trajectory_mean", "sequence_mean", "token_mean", "constant"] = Field(
        default="trajectory_mean",
        description="Weight of a token: 1/(N tokens of its trajectory), 1/(M tokens of its step), "
        "1/(all tokens), or 1/(N `constant`); N trajectories and M steps in the minibatch.",
    )
    constant: float = Field(
        default=1000.0, gt=0.0, description="The divisor of aggregation 'constant'."
    )
    importance: Literal["none", "truncated"] = Field(
        default="none",
        description="'truncated' weighs each token of the policy term (not of KL and entropy) by "
        "min(pi_old / mu, `importance_cap`), mu as the sampler reports it: for an engine whose "
        "log-probs differ from the learner's, or with top_k or top_p, where the whole distribution "
        "is then trained. Audit bounds still hold.",
    )
    importance_cap: float = Field(
        default=2.0, gt=0.0, description="Upper bound of the weight of importance 'truncated'."
    )

    @model_validator(mode="after")
    def _fits(self) -> Loss:
        ignored = {
            "clip": self.clip > 0,
            "clip_high": self.clip_high > 0,
            "kl": self.kl > 0,
            "entropy": self.entropy > 0,
            "aggregation": self.aggregation != "trajectory_mean",
            "importance": self.corrected,
        }
        for name in (n for n, on in ignored.items() if on and self.policy == "dpo"):
            raise ValueError(
                f"loss.{name} is set, but loss.policy 'dpo' compares whole trajectories: it has "
                "its own pull to the start policy (loss.beta), no ratios and no weights of "
                "tokens; leave it out"
            )
        low, high = self.clip_range
        if high < low:
            raise ValueError(
                f"loss.clip_high {high:g} is below the range downwards, {low:g} (loss.clip), and "
                "clip-higher leaves more room upwards; raise loss.clip_high"
            )
        return self

    @property
    def corrected(self) -> bool:
        """Whether tokens are weighted for what the sampler drew them from."""
        return self.importance == "truncated"

    @property
    def clip_range(self) -> tuple[float, float]:
        """(low, high): the ratio is clipped to 1 - low .. 1 + high.

        Where `clip` is 0 they are the policy's own: 0.2 both (PPO), or for a ratio a sequence
        3e-4 and 4e-4 (GSPO, arXiv 2507.18071).
        """
        if self.clip > 0:
            low = high = self.clip
        else:
            low, high = (3e-4, 4e-4) if self.policy == "gspo" else (0.2, 0.2)
        return low, self.clip_high or high

    @property
    def needs_reference(self) -> bool:
        """Whether the learner has to keep the start policy."""
        return self.kl > 0 or self.policy == "dpo"


class Learner(Settings):
    """How weights are updated."""

    backend: Literal["torch", "deepspeed"] = Field(
        default="torch",
        description="The training engine: one process of torch, or `cluster.learners` ranks of "
        "DeepSpeed.",
    )
    deepspeed: str = Field(
        default='{"zero_optimization": {"stage": 2}}',
        description="DeepSpeed's settings: name of a file under conf/deepspeed (zero0 to zero3, "
        "offload), the path of a JSON file, or JSON. Batch, clipping and dtype are set elsewhere.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Compute activations again in the backward pass instead of keeping them.",
    )
    lr: float = Field(default=1e-6, gt=0.0, description="Learning rate of AdamW, constant.")
    beta2: float = Field(default=0.98, gt=0.0, lt=1.0, description="AdamW's second beta.")
    weight_decay: float = Field(default=0.01, ge=0.0, description="AdamW's weight decay.")
    grad_clip: float = Field(
        default=1.0, gt=0.0, description="Global gradient norm is clipped to this."
    )
    epochs: Positive = Field(default=1, description="Passes over an iteration's rollouts.")
    minibatches: Positive = Field(
        default=1, description="Optimiser steps per pass; split by trajectory."
    )
    micro_tokens: Positive = Field(
        default=8192,
        description="Tokens of one forward and backward pass. What rows share at their beginning "
        "counts once, and is computed again in each pass; padding counts. Passes without gradients "
        "may have twice the tokens of their first row.",
    )
    lora_rank: int = Field(
        default=0,
        ge=0,
        description="Train adapters of this rank (LoRA, alpha twice the rank) in place of all "
        "weights; samplers and checkpoints get them merged. 0: all weights.",
    )

    @field_validator("deepspeed")
    @classmethod
    def _is_json(cls, value: str) -> str:
        try:
            good = isinstance(json.loads(value), dict)
        except json.JSONDecodeError:
            good = False
        if not good:
            raise ValueError(
                f"learner.deepspeed '{value[:40]}' is neither the name of a file under "
                "conf/deepspeed (zero0, zero1, zero2, zero3, offload), nor the path of a JSON "
                "file, nor a JSON object"
            )
        return value


class Audit(Settings):
    """Proof that the learner trains on what the sampler sampled."""

    max_diff: float = Field(
        default=1e-3, gt=0.0, description="float32: bound on the largest log-prob difference."
    )
    mean_diff: float = Field(
        default=0.1, gt=0.0, description="bfloat16: bound on the mean log-prob difference."
    )


class Sft(Settings):
    """The cold start: supervised training on scripted trajectories of mixed quality."""

    model: str = Field(
        default="", description="What the cold start begins from; empty: `policy.model`."
    )
    steps: Positive = Field(default=450, description="Optimiser steps.")
    batch_size: Positive = Field(default=96, description="Sequences per optimiser step.")
    lr: float = Field(default=3e-3, gt=0.0, description="Learning rate.")
    final_steps: int = Field(default=260, ge=0, description="Further steps at `final_lr`.")
    final_lr: float = Field(default=2e-3, gt=0.0, description="Learning rate of the final steps.")
    embedding_lr_factor: float = Field(
        default=1.0, gt=0.0, description="Learning rate of embeddings relative to the others'."
    )
    warmup: int = Field(default=20, ge=0, description="Steps of linear warm-up.")
    temperature: float = Field(
        default=1.0,
        gt=0.0,
        le=4.0,
        description="Fit the data at this temperature. Above 1 the policy then samples sharper "
        "than its data at temperature 1, so that rare tokens derail fewer steps.",
    )
    chunk: Positive = Field(
        default=50, description="Steps per task run, metric point and progress line."
    )
    objectives: tuple[Positive, ...] = Field(
        default=(1, 2, 3, 4, 5, 6),
        min_length=1,
        description="Objectives in the scripted trajectories.",
    )
    sloppy: Fraction = Field(default=0.8, description="Chance that a step of the expert is sloppy.")
    drop: Fraction = Field(
        default=0.7, description="A sloppy step drops each old fact with this chance."
    )
    miss: Fraction = Field(default=0.15, description="A sloppy step misses the new fact.")
    wrong: Fraction = Field(default=0.1, description="A sloppy step takes a wrong fact.")
    agents: tuple[AgentKind, ...] = Field(
        default=("self_memory", "react"),
        min_length=1,
        description="Atlas: the agents that one policy learns to be, and `agent.kind`.",
    )

    def kinds(self, kind: AgentKind) -> tuple[AgentKind, ...]:
        """`agents`, and `kind` where it is not one of them."""
        return tuple(dict.fromkeys((*self.agents, kind)))
