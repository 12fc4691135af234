"""What a trajectory and a memory are worth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mempo.config.base import Positive, Settings


class Reward(Settings):
    """The reward of a whole trajectory."""

    answer: Literal["em", "f1"] = Field(
        default="em",
        description="Exact match or word F1, averaged over objectives. What 'succeeded' for DPO's "
        "pairs and memory.only_success is exact match of all of them either way.",
    )
    format_bonus: float = Field(
        default=0.0,
        ge=0.0,
        description="Paid when all steps are well formed and the answer is not empty.",
    )
    function: str = Field(
        default="",
        description="Your own reward, 'my_pkg.mod:name': (trajectory) -> float in place of "
        "`answer` and `format_bonus`; NaN rejects the rollout (docs/own.md). DPO's pairs and "
        "memory.only_success still ask for every objective exactly right. Empty: theirs.",
    )
    scale: Literal["std", "none"] = Field(
        default="std",
        description="A^T is the reward minus its group's mean, divided by the group's standard "
        "deviation or not ('none', Dr. GRPO). A^M always is: lower memory.weight with 'none'.",
    )


class Memory(Settings):
    """The advantage of memory tokens. weight 0 is GRPO."""

    reward: Literal["contrast", "posterior"] = Field(
        default="contrast",
        description="R^M = P(answer | memory) - eps; eps is P(answer | full history) for "
        "'contrast', the constant `epsilon` for 'posterior'.",
    )
    function: str = Field(
        default="",
        description="Your own R^M, 'my_pkg.mod:name': (question, steps, p_mem_S, p_full_S) -> "
        "a number a step in place of `reward` (docs/own.md). Empty: `reward` decides.",
    )
    group: Literal["question", "step"] = Field(
        default="question",
        description="Normalise over all steps of a question's rollouts, or per step index.",
    )
    weight: float = Field(
        default=1.0,
        ge=0.0,
        description="Factor of A^M, in the first iteration where a schedule changes it; "
        "0 trains plain GRPO.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="How the factor of A^M goes from `weight` in the first iteration to "
        "`final_weight` in the last.",
    )
    final_weight: float = Field(
        default=0.0,
        ge=0.0,
        description="Factor of A^M in the last iteration, for 'linear' and 'cosine'.",
    )
    epsilon: float = Field(
        default=0.0, description="The constant of 'posterior'; it cancels in A^M."
    )
    only_success: bool = Field(
        default=False,
        description="A^M only in trajectories that succeeded (well formed, every objective "
        "exactly right, whatever reward.answer or reward.function pays); the others have A^M 0 "
        "and no part in the group's mean.",
    )
    length_cost: float = Field(
        default=0.0,
        ge=0.0,
        description="Subtracted from R^M for every 100 tokens of the memory; 0 is off.",
    )
    gain_bonus: float = Field(
        default=0.0,
        ge=0.0,
        description="Intrinsic bonus beside the task reward: times the gain of P(answer | memory) "
        "from a trajectory's first memory to its last, never below 0; 0 is off.",
    )
    score_every: Positive = Field(
        default=1,
        description="Where P(answer | memory) is only monitored (no A^M, no gain bonus): score "
        "every k-th iteration.",
    )
    full_every: int = Field(
        default=8,
        ge=0,
        description="Where A^M does not need P(answer | full history): score it too, to compare "
        "memories with it, in every k-th iteration (of those that are scored); 0: never.",
    )

    @property
    def trained(self) -> bool:
        """Whether A^M has a weight above 0 at some time of the schedule."""
        return self.weight > 0 or (self.schedule != "constant" and self.final_weight > 0)

    @property
    def needs_history(self) -> bool:
        """Whether A^M is made with P(answer | full history)."""
        return self.trained and (self.reward == "contrast" or self.function != "")
