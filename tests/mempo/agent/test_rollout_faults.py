from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mempo.agent.protocol import STOP_STRINGS, head_ids
from mempo.config import Agent, Evaluate, Experiment, Learner, Rollout
from mempo.environments.atlas import AtlasWorld
from mempo.learners.packing import sampled_row, to_batch
from mempo.learners.torch_learner import TorchLearner
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.hf import TransformersSampler
from mempo.types import Question, Step, Trajectory

Run = Callable[..., list[Trajectory]]
ANSWER = "<mem>m</mem><think>t</think><answer>Paris</answer>"


@pytest.fixture
def question(make_question: Callable[..., Question]) -> Question:
    return make_question()


def row_mask(step: Step) -> list[bool]:
    """The mask of the step's output in the row that is trained on."""
    row = sampled_row(step.prompt_ids, step.output_ids, len(step.logprobs))
    assert row.ids == [*step.prompt_ids, *step.output_ids]
    assert not any(row.mask[: len(step.prompt_ids)])
    return row.mask[len(step.prompt_ids) :]


def test_fault_01_unusual_pieces_are_kept_as_sampled(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    spelled = [
        *codec.encode("<mem>The"),
        *codec.encode(" P"),
        *codec.encode("hantom"),
        *codec.encode("</mem><think>t</think><tool_call>q</tool_call>"),
    ]
    assert spelled != codec.encode(codec.text(spelled))
    [t] = run(scripted(codec, {("q", 0, 0): spelled, ("q", 0, 1): ANSWER}), [question])
    assert t.steps[0].output_ids == spelled
    assert row_mask(t.steps[0]) == [True] * len(spelled)
    n = t.steps[1].head_tokens
    assert t.steps[1].prompt_ids[n : n + len(spelled)] == spelled


def test_fault_02_glue_stays_in_the_prompt_and_is_no_target(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    [t] = run(scripted(codec, {("q", 0, 1): ANSWER}), [question])
    step = t.steps[1]
    prompt = codec.text(step.prompt_ids)
    assert "<|im_end|>\n<|im_start|>user\n" in prompt  # the newline after an end of turn
    assert prompt.endswith("</tool_call>\n<information>The Seine.</information>\n")
    row = sampled_row(step.prompt_ids, step.output_ids, len(step.logprobs))
    assert codec.text([i for i, m in zip(row.ids, row.mask, strict=True) if m]) == ANSWER


def test_fault_03_a_step_is_trained_in_the_short_context_it_was_sampled_in(
    scripted: Any, replies: Any, run: Run, atlas: AtlasWorld, atlas_codec: Codec, tiny_policy: Any
) -> None:
    """A template that drops <think> changes nothing; a dropped step is in no later prompt."""
    tokenizer = atlas_codec.tokenizer
    marks = [tokenizer.convert_tokens_to_ids(w) for w in atlas.entities[:2]]
    [question] = atlas.questions("train", 1, objectives=1, key=(0,))
    calls = [
        f"<mem>nothing</mem><think>{word}</think><tool_call>{word}</tool_call>"
        for word in atlas.entities[:2]
    ]

    real = TransformersSampler(tiny_policy, atlas_codec, stop=STOP_STRINGS, batch_size=1)
    says = {(question.id, 0, n): c for n, c in enumerate(calls)}
    sampler = scripted(atlas_codec, says, fallback=real)
    rollout = Rollout(max_step_tokens=12)
    world = replies(text="nothing", steps=3)
    agent = Agent(prompt="short")
    sampling = Sampling(temperature=0.7)
    [t] = run(sampler, [question], world=world, rollout=rollout, agent=agent, sampling=sampling)
    first, second, third = t.steps
    head = first.prompt_ids
    assert second.prompt_ids == [*head, *first.output_ids, *first.observation_ids]
    assert third.prompt_ids == [*head, *second.output_ids, *second.observation_ids]
    assert marks[0] in second.prompt_ids and marks[0] not in third.prompt_ids[len(head) :]
    assert third.prompt_ids.count(marks[1]) == 2 + head.count(marks[1])  # the thought is there
    learner = TorchLearner(tiny_policy, atlas_codec, Learner())
    row = sampled_row(third.prompt_ids, third.output_ids, len(third.logprobs))
    [logprobs] = learner.logprobs([row], sampling)
    assert logprobs == pytest.approx(third.logprobs, abs=1e-4)


def test_fault_04_no_token_of_a_reply_is_ever_a_target(
    scripted: Any, replies: Any, run: Run, codec: Codec, question: Question
) -> None:
    sentinel = codec.encode("☃")
    world = replies(text="a ☃ b ☃", steps=4)
    for agent in (Agent(history="all"), Agent(history="1"), Agent(kind="react")):
        [t] = run(scripted(codec), [question], agent=agent, world=world)
        seen = 0
        for step in t.steps:
            row = sampled_row(step.prompt_ids, step.output_ids, len(step.logprobs))
            at = [i for i, token in enumerate(row.ids) if token in sentinel]
            assert not any(row.mask[i] for i in at)
            seen += len(at)
        replies_seen = 1 + 1 + 1 if agent.history == "1" and agent.kind != "react" else 1 + 2 + 3
        assert seen == replies_seen * 2 * len(sentinel)


def test_fault_06_truncation_cuts_ids_mask_and_logprobs_together(
    run: Run, atlas: AtlasWorld, atlas_codec: Codec, tiny_policy: Any
) -> None:
    sampler = TransformersSampler(tiny_policy, atlas_codec, stop=STOP_STRINGS, batch_size=4)
    trajectories = run(
        sampler,
        atlas.questions("train", 3, objectives=1, key=(0,)),
        world=atlas,
        group_size=2,
        rollout=Rollout(max_step_tokens=3),
        agent=Agent(prompt="short"),
    )
    steps = [s for t in trajectories for s in t.steps]
    assert any(s.finish_reason == "length" and len(s.output_ids) == 3 for s in steps)
    for s in steps:
        assert len(s.output_ids) == len(s.logprobs) == len(row_mask(s)) <= 3


def test_fault_07_a_sampled_end_token_is_trained_though_padding_looks_like_it(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    end = codec.eos_id
    assert codec.pad_id == end
    ids = [*codec.encode("<mem>m</mem>"), end]
    [t] = run(scripted(codec, {("q", 0, 0): ids}, "eos"), [question])
    assert t.steps[0].output_ids == ids
    assert row_mask(t.steps[0]) == [True] * len(ids)
    assert t.steps[0].memory == "m"
    # ids [5, 6, 0, 0, 0] of length 3 with end = padding = 0: mask [1, 1, 1, 0, 0].
    short, long = sampled_row([9], [5, 6, 0], 3), sampled_row([9], [7, 7, 7, 7, 7], 5)
    batch = to_batch([short, long], 0, "cpu", shared=False)
    assert batch.targets.tolist() == [5, 6, 0, 7, 7, 7, 7, 7]


def test_fault_08_a_token_without_a_logprob_is_no_target(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    [t] = run(scripted(codec, {("q", 0, 0): "<mem>m</mem>"}, "eos"), [question])
    step = t.steps[0]
    assert len(step.output_ids) == len(step.logprobs)  # the loop appends nothing of its own
    row = sampled_row(step.prompt_ids, [*step.output_ids, codec.eos_id], len(step.logprobs))
    assert row.mask[-2:] == [True, False]


def test_fault_09_a_stop_string_inside_a_token_leaves_the_ids_alone(
    scripted: Any, run: Run, codec: Codec, question: Question
) -> None:
    ids = [*codec.encode(ANSWER), *codec.encode("\nNext <mem>")]
    [t] = run(scripted(codec, {("q", 0, 0): ids}), [question])
    assert (t.answer, t.status, t.format, t.reward) == ("Paris", "answered", 1.0, 1.0)
    assert t.steps[0].output_ids == ids


@pytest.mark.parametrize("agent", [Agent(history="all"), Agent(kind="react"), Agent()])
def test_fault_10_every_prompt_describes_the_tool_once(
    scripted: Any, run: Run, codec: Codec, question: Question, agent: Agent
) -> None:
    [t] = run(scripted(codec), [question], agent=agent)
    for step in t.steps:
        assert codec.text(step.prompt_ids).count("<tool_call>words</tool_call>") == 1


def test_fault_33_a_prompt_one_token_too_long_ends_only_its_own_rollout(
    scripted: Any, run: Run, codec: Codec, make_question: Callable[..., Question]
) -> None:
    short, long = make_question(id="short"), make_question(id="long", text="Where? " * 3)
    limit = len(head_ids(codec, Agent(), long)) - 1
    says: Any = {("short", r, 0): ANSWER for r in (0, 1)}
    sampler = scripted(codec, says)
    rollout = Rollout(max_prompt_tokens=limit)
    trajectories = run(sampler, [long, short], group_size=2, rollout=rollout)
    assert [t.question.id for t in trajectories] == ["long", "long", "short", "short"]
    assert Counter(t.status for t in trajectories) == {"context_overflow": 2, "answered": 2}
    assert [t.steps for t in trajectories[:2]] == [[], []]
    assert [(t.reward, t.format) for t in trajectories] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert not any(r.key[-3] == "long" for r in sampler.requests)
    rollout = Rollout(max_prompt_tokens=limit + 1)
    assert run(sampler, [long], rollout=rollout)[0].steps


def test_fault_34_limits_per_step_and_per_trajectory_are_two(
    scripted: Any, run: Run, atlas: AtlasWorld, atlas_codec: Codec, question: Question
) -> None:
    word = atlas.entities[0]
    call = f"<tool_call>{word} {word}</tool_call>"
    assert len(atlas_codec.encode(call)) == 4
    sampler = scripted(atlas_codec, {("q", 0, n): call for n in range(5)})
    [t] = run(sampler, [question], rollout=Rollout(max_step_tokens=4, max_trajectory_tokens=6))
    assert [r.max_tokens for r in sampler.requests] == [4, 2]
    assert [len(s.output_ids) for s in t.steps] == [4, 2]
    assert (t.status, t.steps[1].finish_reason) == ("truncated", "length")


def test_fault_35_a_failing_tool_ends_only_its_own_rollout(
    scripted: Any, replies: Any, run: Run, codec: Codec, question: Question
) -> None:
    says: Any = {("q", r, 1): ANSWER for r in range(8)}
    world = replies(fails=lambda call: call == 3)
    trajectories = run(scripted(codec, says), [question], world=world, group_size=8)
    assert Counter(t.status for t in trajectories) == {"answered": 7, "tool_error": 1}
    failed = trajectories[3]
    assert (failed.status, failed.reward, len(failed.steps)) == ("tool_error", 0.0, 1)
    assert (failed.steps[0].observation, failed.steps[0].observation_ids) == ("", [])


def test_fault_35_a_tool_that_never_worked_stops_the_run(
    scripted: Any, replies: Any, run: Run, codec: Codec, question: Question
) -> None:
    world = replies(fails=lambda _: True)
    with pytest.raises(ConnectionError, match="all 8 tool calls failed; the first: 503"):
        run(scripted(codec), [question], world=world, group_size=8)


def test_fault_50_evaluation_samples_by_its_own_settings_greedily_by_default(
    run: Run, atlas: AtlasWorld, atlas_codec: Codec, tiny_policy: Any
) -> None:
    experiment = Experiment(rollout=Rollout(temperature=1.3, top_k=5, max_step_tokens=8))
    assert experiment.evaluate.temperature == Evaluate().temperature == 0.0
    sampler = TransformersSampler(tiny_policy, atlas_codec, stop=STOP_STRINGS, batch_size=4)
    questions = atlas.questions("test", 2, objectives=1, key=(0,))

    def outputs(sampling: Sampling, seed: int) -> list[list[list[int]]]:
        trajectories = run(
            sampler, questions, world=atlas, rollout=experiment.rollout, sampling=sampling,
            agent=Agent(prompt="short"), key=(seed,),
        )  # fmt: skip
        return [[s.output_ids for s in t.steps] for t in trajectories]

    greedy = Sampling(experiment.evaluate.temperature)
    assert outputs(greedy, 1) == outputs(greedy, 2)
    assert outputs(Sampling(1.3), 1) != outputs(Sampling(1.3), 2)
