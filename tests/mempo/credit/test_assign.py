"""Columns of credit: hand-computed advantages on hand-made trajectories."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np
import pytest

from mempo.config import Memory
from mempo.credit.advantage import token_advantages
from mempo.credit.assign import Credit, assign_credit
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.records import CREDIT_COLUMNS
from mempo.types import Question, Row, Step, Trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def group(
    atlas: AtlasWorld,
    atlas_codec: Codec,
    make_question: Callable[..., Question],
    write_step: Callable[..., Step],
    make_trajectory: Make,
) -> list[Trajectory]:
    """Two rollouts: three steps and reward 1, one step and reward 0; memories all different."""
    words = list(atlas.words())
    question = make_question([[words[0]]])

    def step(memory: str, action: str = "tool_call") -> Step:
        text = f"<mem>{memory}</mem><think>next</think><{action}>done</{action}>"
        return write_step(atlas_codec, text, words[9] if action == "tool_call" else "")

    long = [step(words[1]), step(words[2]), step(words[3], "answer")]
    return [
        make_trajectory(long, question=question, reward=1.0),
        make_trajectory([step(words[4], "answer")], question=question, rollout=1, reward=0.0),
    ]


def fake_logprobs(codec: Codec, atlas: AtlasWorld) -> Callable[[list[Row]], list[np.ndarray]]:
    """P under the memories of `group` .1, .2, .3 and .4; 0.05 under every history."""
    words = list(atlas.words())
    p = {codec.encode(words[i])[0]: i / 10 for i in range(1, 5)}
    opening = codec.encode("<mem>")[0]

    def logprobs(rows: list[Row]) -> list[np.ndarray]:
        values = []
        for row in rows:
            n = len(row.ids) - row.targets
            after_head = row.ids[2:n]
            memory = after_head[0] == opening and len(after_head) == 4  # <mem> w </mem> <answer>
            values.append(p[after_head[1]] if memory else 0.05)
        return [np.full(r.targets, np.log(v)) for r, v in zip(rows, values, strict=True)]

    return logprobs


def test_fault_26_memory_advantages_of_the_group_by_hand(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    fake = fake_logprobs(atlas_codec, atlas)
    credit = assign_credit(atlas_codec, group, fake, Memory())
    np.testing.assert_allclose(credit.p_answer_mem, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(credit.p_answer_full, [0.05] * 4)
    np.testing.assert_allclose(credit.adv_traj, [1, 1, 1, -1])
    np.testing.assert_allclose(credit.adv_mem, [-1.342, -0.447, 0.447, 1.342], atol=1e-3)
    assert credit.zero_std == 0
    by_step = assign_credit(atlas_codec, group, fake, Memory(group="step"))
    np.testing.assert_allclose(by_step.adv_mem, [-1, 0, 0, 1], atol=1e-12)


def test_trajectories_are_normalised_before_steps_are_counted(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    # Three steps of reward 1 and one of reward 0: mean 1/2 of trajectories, not 3/4 of steps.
    credit = assign_credit(atlas_codec, group, fake_logprobs(atlas_codec, atlas), Memory())
    assert credit.adv_traj == [1.0, 1.0, 1.0, -1.0]


def test_contrast_subtracts_the_history_and_posterior_a_constant(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    opening = atlas_codec.encode("<mem>")[0]

    def logprobs(rows: list[Row]) -> list[np.ndarray]:
        """Memory .5 everywhere; history .1 per block of <mem> in it, .1 for an empty one."""
        values = []
        for row in rows:
            blocks = row.ids.count(opening)
            memory = blocks == 1 and len(row.ids) - row.targets == 6
            values.append(0.5 if memory else 0.1 * (blocks + 1))
        return [np.full(r.targets, np.log(v)) for r, v in zip(rows, values, strict=True)]

    contrast = assign_credit(atlas_codec, group, logprobs, Memory())
    np.testing.assert_allclose(contrast.p_answer_full, [0.1, 0.2, 0.3, 0.1])
    # R^M = .4 .3 .2 .4: mean .325, population variance .006875, std .08292
    np.testing.assert_allclose(contrast.adv_mem, [0.9045, -0.3015, -1.5076, 0.9045], atol=1e-4)
    posterior = assign_credit(atlas_codec, group, logprobs, Memory(reward="posterior", epsilon=0.2))
    assert np.isnan(posterior.p_answer_full).all()
    np.testing.assert_array_equal(posterior.adv_mem, [0, 0, 0, 0])  # no variance


def test_weight_zero_is_grpo_and_still_monitors(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    fake = fake_logprobs(atlas_codec, atlas)
    credit = assign_credit(atlas_codec, group, fake, Memory(weight=0))
    assert credit.adv_mem == [0.0] * 4
    np.testing.assert_allclose(credit.p_answer_mem, [0.1, 0.2, 0.3, 0.4])


def test_without_scoring_the_model_is_not_asked(
    atlas_codec: Codec, group: list[Trajectory]
) -> None:
    def refuse(rows: list[Row]) -> list[np.ndarray]:
        raise AssertionError("the model was asked")

    credit = assign_credit(atlas_codec, group, refuse, Memory(weight=0), score=False)
    assert np.isnan(credit.p_answer_mem).all() and np.isnan(credit.p_answer_full).all()
    assert credit.adv_traj == [1.0, 1.0, 1.0, -1.0] and credit.adv_mem == [0.0] * 4


def test_fault_19_share_of_groups_without_signal(
    atlas_codec: Codec,
    make_question: Callable[..., Question],
    make_step: Callable[..., Step],
    make_trajectory: Make,
) -> None:
    def nothing(rows: list[Row]) -> list[np.ndarray]:
        return [np.zeros(r.targets) for r in rows]

    rewards = {"a": [1, 1], "b": [0, 0], "c": [0, 1], "d": [0.7, 0.7]}
    trajectories = [
        make_trajectory([make_step()], question=make_question(id=q), rollout=i, reward=r)
        for q, values in rewards.items()
        for i, r in enumerate(values)
    ]
    credit = assign_credit(atlas_codec, trajectories, nothing, Memory())
    assert credit.zero_std == 0.75
    assert credit.adv_traj == [0, 0, 0, 0, -1, 1, 0, 0]


def test_fault_20_a_rejected_rollout_does_not_shift_the_group(
    atlas_codec: Codec, make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    trajectories = [
        make_trajectory([make_step()] * 2, rollout=i, reward=r)
        for i, r in enumerate([0, 0, 1, nan])
    ]
    credit = assign_credit(atlas_codec, trajectories, lambda rows: [], Memory())
    np.testing.assert_allclose(
        credit.adv_traj, np.repeat([-0.7071, -0.7071, 1.4142, 0], 2), atol=1e-4
    )


def test_fault_20_a_rejected_rollout_shifts_no_memory_either(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    """Memories .1 .2 .3 of the kept rollout alone: mean .2, std .0816; the rejected one's .4 is
    scored and gets nothing."""
    group[1].reward = nan
    credit = assign_credit(atlas_codec, group, fake_logprobs(atlas_codec, atlas), Memory())
    np.testing.assert_allclose(credit.p_answer_mem, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(credit.adv_mem, [-1.2247, 0, 1.2247, 0], atol=1e-4)
    assert credit.adv_traj == [0, 0, 0, 0]


def test_without_scale_the_trajectory_advantage_is_not_divided(
    atlas: AtlasWorld, atlas_codec: Codec, group: list[Trajectory]
) -> None:
    fake = fake_logprobs(atlas_codec, atlas)
    credit = assign_credit(atlas_codec, group, fake, Memory(), scale="none")
    assert credit.adv_traj == [0.5, 0.5, 0.5, -0.5]
    np.testing.assert_allclose(credit.adv_mem, [-1.342, -0.447, 0.447, 1.342], atol=1e-3)


def test_fault_25_every_token_of_every_step_gets_the_advantage(
    atlas_codec: Codec, make_step: Callable[..., Step], make_trajectory: Make
) -> None:
    lengths = [5, 2, 9]
    steps = [make_step(list(range(7, 7 + n))) for n in lengths]
    trajectories = [
        make_trajectory(steps, reward=1.0),
        make_trajectory([make_step()], rollout=1, reward=0.0),
    ]
    credit = assign_credit(atlas_codec, trajectories, lambda rows: [], Memory(weight=0))
    per_step = [
        token_advantages(n, [], a, m, 0.0)
        for n, a, m in zip([*lengths, 3], credit.adv_traj, credit.adv_mem, strict=True)
    ]
    assert [len(a) for a in per_step] == [5, 2, 9, 3]
    assert all((a == 1).all() for a in per_step[:3])
    assert (per_step[3] == -1).all()


def test_no_trajectories_no_credit(atlas_codec: Codec) -> None:
    credit = assign_credit(atlas_codec, [], lambda rows: [], Memory())
    assert credit == Credit()
    assert tuple(credit.columns()) == CREDIT_COLUMNS[:5]  # the others are of two grains
