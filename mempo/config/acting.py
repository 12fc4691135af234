"""Where questions come from, who answers them, what a step sees, how it is sampled."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mempo.config.addresses import NO_PASSWORD
from mempo.config.base import AgentKind, Fraction, Positive, Settings


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
        default="",
        json_schema_extra={"pattern": NO_PASSWORD},
        description="Address of the search server, http://host:port; what it asks for is "
        "MEMPO_RETRIEVER_TOKEN in the environment, sent as a Bearer token.",
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

    engine: Literal["transformers", "vllm"] = Field(
        default="transformers",
        description="The sampler. Both decode each trajectory at its own pace; 'transformers' "
        "computes the prompt of a group once, 'vllm' (an extra of its own, `mempo doctor` says "
        "which) keeps all prefixes.",
    )
    cache_gib: float = Field(
        default=0.0,
        ge=0.0,
        description="vLLM: memory of its KV cache in GiB; 0: 1 on CPU, on a GPU nearly all of it.",
    )
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
