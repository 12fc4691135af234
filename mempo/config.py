"""Settings of the library: frozen, strict, two levels deep, every field explained.

These models are also the form that Prefect shows and the record that MLflow keeps, so a
description here is the help text a user reads. Light to import: no torch.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
AgentKind = Literal["self_memory", "react", "truncation", "summary", "retrieval", "external"]


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
    tool: str = Field(
        default="",
        description="Your own tool, 'my_pkg.mod:name': (question, query) -> str answers tool calls "
        "in place of the world's search (docs/own.md). Empty: the world's.",
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

    kind: AgentKind = Field(
        default="self_memory",
        description="'self_memory' rewrites a <mem> each step and sees little else; 'react' keeps "
        "the whole history; 'truncation' only its last `window` steps; 'summary' sums the history "
        "up every `summary_every` steps; 'retrieval' sees the last step and the `retrieved` most "
        "similar older ones; 'external' moves all but the last step to a store that the policy "
        "may query at any token.",
    )
    function: str = Field(
        default="",
        description="Your own agent, 'my_pkg.mod:name': (agent, codec, question, head, steps) -> "
        "ids that the next step sees (docs/own.md); `kind` still names the protocol. Empty: "
        "`kind` decides.",
    )
    history: str = Field(
        default="1",
        pattern=r"^([1-9]\d*|all|memory)$",
        description="Self-memory: earlier steps a step sees: a number, 'all', or 'memory' (the "
        "last <mem> and the latest reply alone).",
    )
    window: Positive = Field(default=2, description="Truncation: the last steps a step sees.")
    grains: Literal[1, 2] = Field(
        default=1,
        description="2: a <mem> is <summary> and <facts>, and each is scored and credited alone.",
    )
    summary_every: Positive = Field(
        default=3, description="Summary: a step that sums up comes every so many steps."
    )
    retrieved: Positive = Field(
        default=1, description="Retrieval and external: older steps, or entries, brought back."
    )
    embedding_model: str = Field(
        default="",
        description="Retrieval and external: folder or hub name of an encoder that says what is "
        "similar. Empty: BM25.",
    )
    fold_every: Positive = Field(
        default=2, description="External: segments that are folded into one summary."
    )
    max_queries: Positive = Field(
        default=16, description="External: queries to the store in a trajectory."
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

    @model_validator(mode="after")
    def _fits(self) -> Agent:
        if self.grains == 2 and not self.remembers:
            raise ValueError(
                f"agent.grains = 2 needs an agent that writes a memory, not '{self.kind}'; use "
                "agent.kind self_memory or summary"
            )
        return self

    @property
    def remembers(self) -> bool:
        """Whether the agent ever writes a <mem>."""
        return self.kind in ("self_memory", "summary")


def writes_memory(agent: Agent, step: int) -> bool:
    """Whether step number `step`, from 0, has to begin with a <mem>."""
    match agent.kind:
        case "self_memory":
            return True
        case "summary":
            return step > 0 and step % agent.summary_every == 0
        case _:
            return False


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
    resample: int = Field(
        default=0,
        ge=0,
        description="At most so many extra rounds an iteration, in which groups of equal rewards "
        "(DPO: groups without a pair) are replaced by groups of fresh questions; what is still "
        "without signal then stays. With a positive memory.weight such a group still trains its "
        "memories: 0 keeps it. Thrown-away rollouts count in costs and reward metrics, and are not "
        "in the rollout file.",
    )

    @model_validator(mode="after")
    def _resample_needs_groups(self) -> Self:
        if self.resample and self.group_size < 2:
            raise ValueError(
                "rollout.resample replaces groups of equal rewards, and a group of one always is "
                "such a group; raise rollout.group_size to 2 or more, or set rollout.resample=0"
            )
        return self


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
    temperature: float = Field(
        default=1.0,
        gt=0.0,
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
        description="Atlas: the agents that one policy learns to be, and `agent.kind`.",
    )


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
        "above 1 the policy leans on its memory, 0 acts as if it were empty.",
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

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.evaluate.memory_weight != 1 and not self.agent.remembers:
            raise ValueError(
                f"evaluate.memory_weight is set, but agent.kind '{self.agent.kind}' writes no "
                "memory; leave it out"
            )
        if self.rollout.resample and self.memory.gain_bonus > 0:
            raise ValueError(
                "rollout.resample replaces groups of equal rewards as soon as they are sampled, "
                "but memory.gain_bonus adds to rewards only after scoring; set one of them to 0"
            )
        return self

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
