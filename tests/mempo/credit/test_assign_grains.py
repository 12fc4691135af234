"""A memory of two grains: each part has a score and an advantage of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mempo.agent.protocol import parse_step, token_span
from mempo.config import Memory
from mempo.credit.advantage import token_advantages
from mempo.credit.assign import assign_credit
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.types import Question, Row, Step, Trajectory


@pytest.fixture
def group(
    atlas: AtlasWorld,
    atlas_codec: Codec,
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
    make_trajectory: Callable[..., Trajectory],
) -> list[Trajectory]:
    """Two rollouts of one step each; parts (word 1, word 2), and (word 3, word 4)."""
    words = list(atlas.words())
    question = make_question([[words[0]]])
    made = []
    for n, (summary, facts) in enumerate([(words[1], words[2]), (words[3], words[4])]):
        memory = f"<summary>{summary}</summary><facts>{facts}</facts>"
        text = f"<mem>{memory}</mem><think>done</think><answer>done</answer>"
        step = write_step(atlas_codec, text, "")
        _, offsets = atlas_codec.text_and_offsets(step.output_ids)
        at = parse_step(atlas_codec.text(step.output_ids), grains=2).grains_at
        step.mem_spans = [token_span(offsets, *span) for span in at]
        made.append(make_trajectory([step], question=question, rollout=n, reward=1.0))
    return made


def test_each_grain_is_scored_alone_and_compared_with_its_like(
    group: list[Trajectory], atlas_codec: Codec, atlas: AtlasWorld
) -> None:
    words = list(atlas.words())
    number = {atlas_codec.encode(w)[0]: i for i, w in enumerate(words)}
    asked: list[list[int]] = []

    def logprobs(rows: list[Row]) -> list[np.ndarray]:
        """P = .1 x the sum of the numbers of the memory's words; the question's word is 0."""
        values = []
        for row in rows:
            seen = [number[i] for i in row.ids if i in number]
            asked.append(seen)
            values.append(np.full(row.targets, np.log(sum(seen) / 10)))
        return values

    settings = Memory(reward="posterior")
    credit = assign_credit(atlas_codec, group, logprobs, settings, grains=2)
    assert [seen[:-1] for seen in asked] == [[1, 2], [3, 4], [1], [3], [2], [4]]
    np.testing.assert_allclose(credit.p_answer_mem, [0.3, 0.7])
    np.testing.assert_allclose(credit.p_grains, [[0.1, 0.3], [0.2, 0.4]])
    np.testing.assert_allclose(credit.adv_grains, [[-1, 1], [-1, 1]])
    columns = credit.columns()
    assert columns["p_answer_facts"] == credit.p_grains[1]
    assert columns["adv_summary"] == credit.adv_grains[0]

    costly = settings.model_copy(update={"length_cost": 100.0})  # 1 a token
    paid = assign_credit(atlas_codec, group, logprobs, costly, grains=2)
    for grain in (0, 1):
        lengths = [b - a for t in group for a, b in t.steps[0].mem_spans[grain : grain + 1]]
        rewards = np.array(credit.p_grains[grain]) - lengths
        expected = (rewards - rewards.mean()) / rewards.std()
        np.testing.assert_allclose(paid.adv_grains[grain], expected)
    off = assign_credit(atlas_codec, group, logprobs, Memory(weight=0), grains=2)
    assert off.adv_grains == [[0, 0], [0, 0]]


def test_the_tokens_of_a_grain_get_its_own_advantage() -> None:
    got = token_advantages(6, [(1, 3), (4, 5)], 0.5, (2.0, -4.0), weight=0.25)
    np.testing.assert_array_equal(got, [0.5, 1.0, 1.0, 0.5, -0.5, 0.5])
    with pytest.raises(ValueError, match="zip"):
        token_advantages(6, [(1, 3), (4, 5)], 0.5, (2.0,))
    np.testing.assert_array_equal(token_advantages(2, [], 0.5, (2.0, 1.0)), [0.5, 0.5])


def test_a_grain_is_scored_with_the_alias_that_the_whole_memory_chose(
    group: list[Trajectory], atlas_codec: Codec, atlas: AtlasWorld
) -> None:
    """Alias 1 is likelier under the whole memory, alias 2 under either part alone."""
    words = list(atlas.words())
    number = {atlas_codec.encode(w)[0]: i for i, w in enumerate(words)}
    for t in group:
        t.question.answers[:] = [[words[0], words[5]]]
    table = {  # (words of the memory, alias) -> P; without words it is the history
        ((1, 2), 0): 0.6, ((1, 2), 5): 0.5, ((1,), 0): 0.2, ((1,), 5): 0.9,
        ((2,), 0): 0.3, ((2,), 5): 0.8, ((3, 4), 0): 0.7, ((3, 4), 5): 0.1,
        ((3,), 0): 0.4, ((3,), 5): 0.9, ((4,), 0): 0.1, ((4,), 5): 0.8,
        ((), 0): 0.05, ((), 5): 0.95,
    }  # fmt: skip

    def logprobs(rows: list[Row]) -> list[np.ndarray]:
        seen = [tuple(number[i] for i in row.ids if i in number) for row in rows]
        return [np.log([table[s[:-1], s[-1]]]) for s in seen]

    credit = assign_credit(atlas_codec, group, logprobs, Memory(), grains=2)
    np.testing.assert_allclose(credit.p_answer_mem, [0.6, 0.7])
    np.testing.assert_allclose(credit.p_answer_full, [0.05, 0.05])
    np.testing.assert_allclose(credit.p_grains, [[0.2, 0.4], [0.3, 0.1]])
    np.testing.assert_allclose(credit.adv_grains, [[-1, 1], [1, -1]])
