"""Settings of the library: frozen, strict, two levels deep, every field explained.

These models are also the form that Prefect shows and the record that MLflow keeps, so a
description here is the help text a user reads. Light to import: no torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown or misspelled key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(Settings):
    """Where questions and facts come from."""

    name: Literal["atlas", "dataset"] = Field(
        default="atlas",
        description="'atlas' invents endless questions and facts; 'dataset' reads your files.",
    )
    questions: str = Field(
        default="", description="Question file (.jsonl or .parquet) when name is 'dataset'."
    )
    test_questions: str = Field(
        default="",
        description="Question file for evaluation. Empty: `test_fraction` of `questions`, "
        "split by question id.",
    )
    test_fraction: Fraction = Field(
        default=0.2, description="Share of `questions` held out for evaluation, by hash of the id."
    )
    question_filter: Literal["all", "extractive", "solved"] = Field(
        default="all",
        description="'extractive' keeps questions whose answer can be copied from a passage and "
        "is not yes/no or a choice named in the question; 'solved' those of them that the scripted "
        "expert can answer with this retriever.",
    )
    retriever: Literal["bm25", "search_r1", "recall"] = Field(
        default="bm25",
        description="'bm25' indexes `corpus` here; 'search_r1' and 'recall' call the server at "
        "`retriever_url` (POST /retrieve and POST /search).",
    )
    corpus: str = Field(
        default="",
        description='Passages for bm25: .jsonl of {"id", "contents": "\\"Title\\"\\ntext"}.',
    )
    retriever_url: str = Field(
        default="", description="Address of the search server, http://host:port."
    )
    top_k: Positive = Field(default=3, description="Passages per search.")
    passage_tokens: Positive = Field(
        default=100, description="A passage is cut to this many tokens."
    )
    objectives: tuple[Positive, ...] = Field(
        default=(1,),
        min_length=1,
        description="Objectives per training question; iterations cycle through the list.",
    )
    entities: Positive = Field(default=60, description="Atlas: invented entities.")
    attributes: Positive = Field(default=8, description="Atlas: attributes of an entity.")
    values: Positive = Field(default=25, description="Atlas: possible values of an attribute.")
    reply_facts: Positive = Field(
        default=6, description="Atlas: facts in a reply, the right one included."
    )


class Policy(Settings):
    """The language model that is trained."""

    model: str = Field(
        default="builtin:atlas-sft",
        description="Local folder or hub name of a transformers causal LM, 'builtin:atlas-sft' for "
        "the shipped policy of the atlas world, or 'tiny' for a fresh one of 0.5M parameters.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Type of computation; optimiser state is always float32."
    )


class Agent(Settings):
    """What a step sees and how it must answer."""

    kind: Literal["self_memory", "react"] = Field(
        default="self_memory",
        description="'self_memory' rewrites a <mem> each step; 'react' keeps the whole history.",
    )
    history: str = Field(
        default="1",
        pattern=r"^([1-9]\d*|all|memory)$",
        description="Self-memory only. Earlier steps a step sees: a number, 'all', or 'memory' "
        "(the last <mem> and the latest reply alone).",
    )
    prompt: Literal["full", "short"] = Field(
        default="full",
        description="'full' explains the protocol in words; 'short' is one word naming the agent "
        "(for policies trained from scratch).",
    )
    max_steps: int = Field(
        default=0,
        ge=0,
        description="Steps per trajectory. 0: objectives + 2 (atlas), max(16, n + 2) else.",
    )


class Rollout(Settings):
    """How trajectories are sampled."""

    engine: Literal["transformers"] = Field(default="transformers", description="The sampler.")
    questions: Positive = Field(default=8, description="Questions per iteration (Q).")
    group_size: Positive = Field(default=16, description="Rollouts per question (G).")
    temperature: float = Field(default=1.0, gt=0.0, description="Sampling temperature in training.")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Nucleus sampling; 1 is off.")
    top_k: int = Field(
        default=0, ge=0, description="Sample among the k likeliest tokens; 0 is off."
    )
    max_step_tokens: Positive = Field(default=512, description="Generated tokens per step.")
    max_trajectory_tokens: int = Field(
        default=0, ge=0, description="Generated tokens per trajectory; 0: no limit of its own."
    )
    max_prompt_tokens: Positive = Field(
        default=4096, description="A longer prompt ends its rollout as 'context_overflow'."
    )
    batch_size: Positive = Field(default=128, description="Sequences the sampler decodes at once.")


class Reward(Settings):
    """The reward of a whole trajectory."""

    answer: Literal["em", "f1"] = Field(
        default="em", description="Exact match or word F1, averaged over objectives."
    )
    format_bonus: float = Field(
        default=0.0,
        ge=0.0,
        description="Paid when all steps are well formed and the answer is not empty.",
    )


class Memory(Settings):
    """The advantage of memory tokens. weight 0 is GRPO."""

    reward: Literal["contrast", "posterior"] = Field(
        default="contrast",
        description="R^M = P(answer | memory) - eps; eps is P(answer | full history) for "
        "'contrast', the constant `epsilon` for 'posterior'.",
    )
    group: Literal["question", "step"] = Field(
        default="question",
        description="Normalise over all steps of a question's rollouts, or per step index.",
    )
    weight: float = Field(default=1.0, ge=0.0, description="Factor of A^M; 0 trains plain GRPO.")
    epsilon: float = Field(default=0.0, description="The constant of 'posterior'.")
    score_every: Positive = Field(
        default=1,
        description="With weight 0, P(answer | memory) is only monitored: score every k-th "
        "iteration.",
    )


class Loss(Settings):
    """PPO clip with a KL penalty."""

    clip: float = Field(default=0.2, gt=0.0, lt=1.0, description="Clip range of the ratio.")
    kl: float = Field(default=0.0, ge=0.0, description="Coefficient of KL(policy || start policy).")
    kl_estimator: Literal["k2", "k3"] = Field(
        default="k2",
        description="k2 has the exact gradient of KL(pi || ref), k3 that of KL(ref || pi).",
    )
    aggregation: Literal["trajectory_mean", "token_mean", "constant"] = Field(
        default="trajectory_mean",
        description="Weight of a token: 1/(N tokens of its trajectory), 1/(all tokens), or "
        "1/(N `constant`); N = trajectories of the minibatch.",
    )
    constant: float = Field(
        default=1000.0, gt=0.0, description="The divisor of aggregation 'constant'."
    )


class Learner(Settings):
    """How weights are updated."""

    backend: Literal["torch"] = Field(default="torch", description="The training engine.")
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
        default=8192, description="Tokens (padding included) of one forward and backward pass."
    )


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


class Evaluate(Settings):
    """What is measured after training, always on questions not trained on."""

    objectives: tuple[Positive, ...] = Field(
        default=(2, 4, 6), min_length=1, description="Objectives per question."
    )
    questions: Positive = Field(default=96, description="Questions per number of objectives (K).")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy (metrics eval/...).")
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


class Tracking(Settings):
    """Where runs are recorded."""

    uri: str = Field(
        default="",
        description="MLflow server, e.g. http://host:5000. Empty: SQLite under MEMPO_HOME.",
    )
    experiment: str = Field(default="mempo", description="MLflow experiment.")
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
    sampler_cpus: float = Field(
        default=0.5, ge=0, description="CPUs reserved by the sampler actor."
    )
    sampler_gpus: float = Field(default=0, ge=0, description="GPUs reserved by the sampler actor.")
    learner_cpus: float = Field(
        default=0.5, ge=0, description="CPUs reserved by the learner actor."
    )
    learner_gpus: float = Field(default=0, ge=0, description="GPUs reserved by the learner actor.")
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


class Experiment(Settings):
    """One run, whole: what a preset fills in, a form shows and MLflow records."""

    preset: str = Field(default="", description="Name of the preset this was built from.")
    seed: int = Field(
        default=0, description="One seed for the run; every draw is a function of it."
    )
    iterations: int = Field(default=24, ge=0, description="RL iterations; 0 only evaluates.")
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

    @property
    def algorithm(self) -> Literal["grpo", "mempo"]:
        """The tag of the run: without a memory, or without its advantage, MemPO is GRPO."""
        remembers = self.agent.kind == "self_memory"
        return "mempo" if remembers and self.memory.weight > 0 else "grpo"
