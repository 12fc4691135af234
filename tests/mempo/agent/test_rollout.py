from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mempo.agent.protocol import STOP_STRINGS, head_ids, information_ids
from mempo.config import Agent, Rollout
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler
from mempo.types import FinishReason, Question, Trajectory

Run = Callable[..., list[Trajectory]]
ANSWER = "<mem>m</mem><think>t</think><answer>Paris</answer>"


@pytest.fixture
def question(make_question: Callable[..., Question]) -> Question:
    return make_question()


def test_a_step_is_kept_as_the_policy_lived_it(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    sampler = scripted(codec, {("q", 0, 1): ANSWER})
    [t] = run(sampler, [question])
    head = head_ids(codec, Agent(), question)
    first, last = t.steps
    assert first.prompt_ids == sampler.requests[0].prompt_ids == head
    assert last.prompt_ids == sampler.requests[1].prompt_ids
    assert last.prompt_ids == [*head, *first.output_ids, *first.observation_ids]
    assert first.observation_ids == information_ids(codec, "The Seine.")
    assert [s.head_tokens for s in t.steps] == [len(head)] * 2
    assert [codec.text(s.output_ids[slice(*s.mem_spans[0])]) for s in t.steps] == ["m", "m"]
    assert [s.memory for s in t.steps] == ["m", "m"]
    assert [(s.action, s.action_text) for s in t.steps] == [
        ("tool_call", "river"),
        ("answer", "Paris"),
    ]
    assert (first.observation, last.observation, last.observation_ids) == ("The Seine.", "", [])
    assert {s.policy_version for s in t.steps} == {3}
    assert (t.status, t.answer, t.reward, t.em, t.f1, t.format) == (
        "answered", "Paris", 1.0, 1.0, 1.0, 1.0
    )  # fmt: skip


def test_trajectories_come_question_by_question(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    questions = [make_question(id="a"), make_question(id="b")]
    sampler = scripted(codec, {("a", 1, 0): ANSWER})
    trajectories = run(sampler, questions, group_size=2)
    assert [(t.question.id, t.rollout) for t in trajectories] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1)
    ]  # fmt: skip
    assert [len(t.steps) for t in trajectories] == [5, 1, 5, 5]
    assert sampler.requests[1].key == (7, "rollout", 0, "a", 1, 0)
    assert len({r.key for r in sampler.requests}) == len(sampler.requests)


def test_a_right_answer_in_a_wrong_format_earns_nothing(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    sampler = scripted(codec, {("q", 0, 0): "<think>t</think><answer>Paris</answer>"})
    [t] = run(sampler, [question])
    assert (t.status, t.em, t.format, t.reward) == ("answered", 1.0, 0.0, 0.0)
    [t] = run(sampler, [question], agent=Agent(kind="react"))
    assert (t.status, t.em, t.format, t.reward) == ("answered", 1.0, 1.0, 1.0)
    [t] = run(scripted(codec, {("q", 0, 0): ANSWER}), [question], agent=Agent(kind="react"))
    assert (t.status, t.format, t.steps[0].mem_spans) == ("answered", 0.0, [])  # no memory agent


def test_one_badly_formed_step_spoils_the_format(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    says: Any = {("q", 0, 0): "<tool_call>q</tool_call>", ("q", 0, 1): ANSWER}
    [t] = run(scripted(codec, says), [question])
    assert [s.well_formed for s in t.steps] == [False, True]
    assert (t.em, t.format, t.reward) == (1.0, 0.0, 0.0)


def test_the_step_limit_is_the_agent_s_or_the_world_s(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    for agent, steps in ((Agent(), 5), (Agent(max_steps=2), 2)):
        [t] = run(scripted(codec), [question], agent=agent)
        assert (t.status, len(t.steps), t.answer, t.reward) == ("step_limit", steps, "", 0.0)


@pytest.mark.parametrize(
    ("text", "reason", "status"),
    [("<mem>m</mem> so", "eos", "bad_format"), ("<mem>m</mem> so", "length", "truncated")],
)
def test_an_output_without_an_action_ends_the_trajectory(
    scripted: Any,
    run: Run,
    codec: Codec,
    question: Question,
    text: str,
    reason: FinishReason,
    status: str,
) -> None:
    [t] = run(scripted(codec, {("q", 0, 0): text}, reason), [question])
    assert (t.status, len(t.steps), t.format, t.reward) == (status, 1, 0.0, 0.0)


def test_a_later_prompt_can_outgrow_the_limit(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    [free] = run(scripted(codec), [question], agent=Agent(history="all"))
    rollout = Rollout(max_prompt_tokens=len(free.steps[2].prompt_ids) - 1)
    [t] = run(scripted(codec), [question], agent=Agent(history="all"), rollout=rollout)
    assert (t.status, len(t.steps)) == ("context_overflow", 2)
    assert t.steps == free.steps[:2]


def test_a_trajectory_without_tokens_left_is_truncated(
    scripted: Any, run: Run, atlas: AtlasWorld, atlas_codec: Codec, question: Question
) -> None:
    call = f"<tool_call>{atlas.entities[0]}</tool_call>"
    sampler = scripted(atlas_codec, {("q", 0, n): call for n in range(5)})
    [t] = run(sampler, [question], rollout=Rollout(max_step_tokens=4, max_trajectory_tokens=6))
    assert [r.max_tokens for r in sampler.requests] == [4, 3]
    assert (t.status, len(t.steps)) == ("truncated", 2)


def test_a_tool_that_fails_later_ends_the_rollouts_not_the_run(
    scripted: Any, replies: Any, run: Run, codec: Codec, question: Question
) -> None:
    world = replies(fails=lambda call: call >= 2)
    trajectories = run(scripted(codec), [question], world=world, group_size=2)
    assert Counter(t.status for t in trajectories) == {"tool_error": 2}
    assert [len(t.steps) for t in trajectories] == [2, 2]


def test_progress_counts_the_trajectories_that_have_ended(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    says: Any = {("q", 0, 0): ANSWER, ("q", 1, 2): ANSWER}
    seen: list[tuple[int, int]] = []
    sampler = scripted(codec, says)
    run(sampler, [question], group_size=2, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 2), (1, 2), (2, 2)]


def test_batch_size_and_order_change_neither_ids_nor_draws(
    run: Run, atlas: AtlasWorld, atlas_codec: Codec, tiny_policy: Any
) -> None:
    questions = [q for k in (1, 3) for q in atlas.questions("train", 2, objectives=k, key=(0,))]
    rollout, agent = Rollout(max_step_tokens=10), Agent(prompt="short")
    got: list[dict[tuple[str, int], Trajectory]] = []
    for batch_size, order in ((1, 1), (3, 1), (64, -1)):
        sampler = TransformersSampler(
            tiny_policy, atlas_codec, stop=STOP_STRINGS, batch_size=batch_size
        )
        trajectories = run(
            sampler, questions[::order], world=atlas, group_size=3, rollout=rollout, agent=agent
        )
        got.append({(t.question.id, t.rollout): t for t in trajectories})
    outputs = [{k: [s.output_ids for s in t.steps] for k, t in g.items()} for g in got]
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({str(o) for o in outputs[0].values()}) > 6  # rollouts of a question differ
    for k, t in got[0].items():
        for a, b in zip(t.steps, got[2][k].steps, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_a_weighted_memory_is_taken_out_of_a_second_prompt(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    sampler = scripted(codec, {("q", 0, 1): ANSWER})
    run(sampler, [question], sampling=Sampling(memory_weight=2.0))
    first, second = sampler.requests
    assert first.without_ids == first.prompt_ids
    assert second.without_ids is not None
    assert codec.text(second.without_ids) == codec.text(second.prompt_ids).replace(
        "<mem>m</mem>", "<mem></mem>"
    )
    sampler.requests.clear()
    run(sampler, [question])
    assert [r.without_ids for r in sampler.requests] == [None, None]
