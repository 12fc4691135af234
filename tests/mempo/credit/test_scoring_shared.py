"""Scoring whole groups with shared prefixes: the naive values, and few tokens for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log
from typing import Any

import pytest
import torch

from mempo.agent.protocol import memory_block_ids
from mempo.config import Learner
from mempo.credit.scoring import score_questions
from mempo.environments.atlas import AtlasWorld
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step

ROLLOUTS = 16


@pytest.fixture
def learner(tiny_policy: Any, atlas_codec: Codec) -> TorchLearner:
    with torch.no_grad():
        tiny_policy.model.norm.weight.fill_(1.0)
    return TorchLearner(tiny_policy, atlas_codec, Learner(micro_tokens=100_000))


@pytest.fixture
def lived(
    atlas: AtlasWorld, atlas_codec: Codec, write_step: Callable[..., Step]
) -> Callable[..., list[list[Step]]]:
    """lived(T, rollouts=16): rollouts of T steps of 24 tokens each, random words in them."""
    words, rng = list(atlas.words()), random.Random(0)
    head = atlas_codec.encode(" ".join(rng.choices(words, k=20)))

    def some(n: int) -> str:
        return " ".join(rng.choices(words, k=n))

    def step() -> Step:
        said = f"<mem>{some(6)}</mem><think>{some(2)}</think><tool_call>{some(2)}</tool_call>"
        return write_step(atlas_codec, said, some(6), prompt_ids=[*head, 3], head_tokens=len(head))

    def make(steps: int, rollouts: int = ROLLOUTS) -> list[list[Step]]:
        return [[step() for _ in range(steps)] for _ in range(rollouts)]

    return make


def contexts(codec: Codec, steps: list[Step]) -> list[tuple[list[int], list[int]]]:
    """Of each step, what P(answer | memory) and P(answer | history) are conditioned on."""
    made, history = [], []
    for step in steps:
        head = step.prompt_ids[: step.head_tokens]
        opened = codec.encode("<answer>")
        memory = memory_block_ids(codec, step.output_ids)
        made.append(([*head, *memory, *opened], [*head, *history, *opened]))
        history = [*history, *step.output_ids, *step.observation_ids]
    return made


@torch.no_grad()
def naive(model: Any, context: list[int], gold: list[int]) -> float:
    """One row, one pass, the softmax in float64."""
    logits = model(input_ids=torch.tensor([[*context, *gold]])).logits[0].double()
    logp = logits.log_softmax(-1)
    return exp(sum(logp[len(context) - 1 + n, t].item() for n, t in enumerate(gold)) / len(gold))


@pytest.mark.parametrize("steps", [3, 6, 10])
def test_scores_of_a_group_are_those_of_a_naive_loop(
    steps: int,
    learner: TorchLearner,
    atlas_codec: Codec,
    lived: Callable[..., list[list[Step]]],
    make_question: Callable[..., Question],
    atlas: AtlasWorld,
) -> None:
    words = list(atlas.words())
    question = make_question([[f"{words[0]} {words[5]} {words[9]}"]])
    gold, rollouts = atlas_codec.encode(question.gold), lived(steps)
    (got,) = score_questions(atlas_codec, [(question, rollouts)], learner.logprobs, full=True)
    rows: set[tuple[int, ...]] = set()
    for trajectory, pairs in zip(rollouts, got, strict=True):
        for (memory, history), (p_mem, p_full) in zip(
            contexts(atlas_codec, trajectory), pairs, strict=True
        ):
            assert log(p_mem) == pytest.approx(log(naive(learner.model, memory, gold)), abs=1e-4)
            assert log(p_full) == pytest.approx(log(naive(learner.model, history, gold)), abs=1e-4)
            rows |= {(*memory, *gold[:-1]), (*history, *gold[:-1])}
    assert len({round(p, 9) for steps in got for pair in steps for p in pair}) > steps * ROLLOUTS
    # Each token once: as many as there are different beginnings of all rows.
    assert learner.tokens == len({row[: n + 1] for row in rows for n in range(len(row))})


def test_memories_that_are_the_same_are_computed_once(
    learner: TorchLearner,
    atlas_codec: Codec,
    lived: Callable[..., list[list[Step]]],
    make_question: Callable[..., Question],
    atlas: AtlasWorld,
) -> None:
    question = make_question([[next(iter(atlas.words()))]])
    (one,) = lived(2, rollouts=1)

    def tokens(rollouts: list[list[Step]]) -> int:
        before = learner.tokens
        score_questions(atlas_codec, [(question, rollouts)], learner.logprobs, full=True)
        return learner.tokens - before

    assert tokens([one] * ROLLOUTS) == tokens([one])


def test_the_history_of_more_steps_costs_in_proportion(
    learner: TorchLearner, atlas_codec: Codec, lived: Callable[..., list[list[Step]]]
) -> None:
    """Tokens processed grow with exponent 1 in the history's length; a row at a time nearly 2."""

    def tokens(steps: int) -> tuple[int, int]:
        """(that were processed for P(answer | history), of all rows one at a time)"""
        rows = [
            Row([*history, 5, 6], [False] * len(history) + [True, True])
            for trajectory in lived(steps)
            for _, history in contexts(atlas_codec, trajectory)
        ]
        before = learner.tokens
        learner.logprobs(rows)
        return learner.tokens - before, sum(len(row.ids) for row in rows)

    few, many = tokens(3), tokens(12)
    # T steps have T - 1 steps of history behind them.
    exponents = [log(b / a) / log((12 - 1) / (3 - 1)) for a, b in zip(few, many, strict=True)]
    assert exponents[0] <= 1.05
    assert exponents[1] > 1.4
