"""What is measured, at which price, what is kept, and where it runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mempo.config.addresses import NO_PASSWORD
from mempo.config.base import Positive, Settings


class Evaluate(Settings):
    """What is measured after training, always on questions not trained on."""

    objectives: tuple[Positive, ...] = Field(
        default=(2, 4, 6), min_length=1, description="Objectives per question."
    )
    questions: Positive = Field(default=96, description="Questions per number of objectives (K).")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy (metrics eval/...).")
    memory_weight: float = Field(
        default=1.0,
        ge=0.0,
        description="Weight w of the memory in the logits, l_without + w (l_with - l_without): "
        "above 1 the policy leans on its memory, 0 acts as if it were empty. Without it each <mem> "
        "that a step sees is empty; replies, with agent.history all of them, stay in view.",
    )
    sampled: bool = Field(
        default=True, description="Also sample at temperature 1 (eval_sampled/...)."
    )
    passes: Positive = Field(
        default=1,
        description="Sampled answers per question, each with draws of its own; intervals count "
        "them as one question. Greedy decoding always answers once.",
    )
    before: bool = Field(
        default=True, description="Also measure the policy before its first update."
    )
    every: int = Field(
        default=0, ge=0, description="Also every k-th iteration; 0: only before and after."
    )
    seed: int = Field(default=12345, description="Seed of the evaluation questions and draws.")


class Price(Settings):
    """US dollars per million tokens; turns token counts into cost/usd."""

    prompt: float = Field(default=0.15, ge=0.0, description="Prompt tokens.")
    cached: float = Field(
        default=0.075, ge=0.0, description="Prompt tokens served from a prefix cache."
    )
    generated: float = Field(default=0.60, ge=0.0, description="Generated tokens.")
    scored: float = Field(default=0.15, ge=0.0, description="Tokens of P(answer | context) passes.")
    trained: float = Field(default=0.45, ge=0.0, description="Tokens of training passes.")


class Checkpoint(Settings):
    """When weights and optimiser state are kept."""

    every: Positive = Field(
        default=1, description="Checkpoint every k-th iteration (and the last)."
    )
    keep: Positive = Field(default=2, description="Older checkpoints than the last k are deleted.")
    best: str = Field(
        default="",
        pattern=r"^(eval(_sampled)?/n[1-9]\d*/(f1|em|format|p_answer))?$",
        description="An evaluation metric, such as eval/n4/em: the checkpoint with its largest "
        "value is kept, too. Measured every `evaluate.every`-th iteration. Empty: none.",
    )


class Tracking(Settings):
    """Where runs are recorded."""

    uri: str = Field(
        default="",
        json_schema_extra={"pattern": NO_PASSWORD},
        description="MLflow server, e.g. http://host:5000, without a password (that is "
        "MLFLOW_TRACKING_PASSWORD in the environment). Empty: SQLite under MEMPO_HOME, or the "
        "database that MEMPO_DATABASE_URL names.",
    )
    experiment: str = Field(
        default="mempo",
        pattern=r"^[^/\\:]*[^/\\:.][^/\\:]*$",  # a folder of the store bears its name
        description="MLflow experiment; a name without '/', '\\' or ':'.",
    )
    traces: int = Field(
        default=2, ge=0, description="Trajectories per evaluation kept as MLflow traces."
    )


class Cluster(Settings):
    """Where the work runs. Files under conf/cluster/ fill this section."""

    address: str = Field(
        default="",
        description="Ray cluster to join, 'host:port' or 'ray://host:10001'. Empty: a local Ray.",
    )
    cpus: int = Field(default=0, ge=0, description="Cores of a local Ray; 0: all that are free.")
    samplers: Positive = Field(
        default=1, description="Sampler actors; they share an iteration's questions."
    )
    sampler_cpus: float = Field(
        default=0.5, gt=0, description="CPUs reserved by each sampler actor."
    )
    sampler_gpus: float = Field(
        default=0,
        ge=0,
        description="GPUs reserved by each sampler actor; 0.5 here and at the learner share one.",
    )
    learners: Positive = Field(
        default=1, description="Ranks of the learner, an actor each (learner.backend deepspeed)."
    )
    learner_cpus: float = Field(default=0.5, gt=0, description="CPUs reserved by each rank.")
    learner_gpus: float = Field(default=0, ge=0, description="GPUs reserved by each rank.")
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        default="pack",
        description="Actors of a run on few nodes, on many, on one alone, or each on another.",
    )
    place_timeout_s: Positive = Field(
        default=120, description="How long a run waits for room on the cluster."
    )
    recoveries: int = Field(
        default=3,
        ge=0,
        description="How often in a row, without an iteration done in between, a training run "
        "whose actor or node died goes on from its last checkpoint by itself.",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="Threads of an actor's computation; 0: free cores / parallel runs.",
    )
    parallel: Positive = Field(
        default=1, description="Runs of an ablation that go on side by side."
    )
    timeout_s: Positive = Field(
        default=3600, description="A stage that takes longer fails with an error that names it."
    )
