from __future__ import annotations

from pathlib import Path

import pytest

from mempo.agent.coldstart import (
    agent_of,
    atlas_batch,
    calibration_row,
    script_rows,
    step_text,
)
from mempo.agent.protocol import head_ids, parse_step
from mempo.agent.rollout import run_trajectories
from mempo.config import Agent, AgentKind, Reward, Rollout, Sft, writes_memory
from mempo.draws import generator
from mempo.environments.atlas import EMPTY_MEMORY, AtlasWorld
from mempo.environments.experts import Script, ScriptedStep
from mempo.learners.packing import sampled_row
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.types import Completion, Request, Row, Trajectory

AGENTS = [
    Agent(prompt="short", history="1"),
    Agent(prompt="short", history="2"),
    Agent(prompt="short", history="memory"),
    Agent(prompt="short", history="all"),
    Agent(prompt="short", grains=2),
    Agent(prompt="short", kind="react"),
    Agent(prompt="short", kind="truncation", window=2),
    Agent(prompt="short", kind="summary", summary_every=2),
    Agent(prompt="short", kind="retrieval", retrieved=1),
    Agent(prompt="short", kind="external", fold_every=2),
]


def expert(atlas: AtlasWorld, agent: Agent, objectives: int = 3) -> Script:
    rng = generator("expert", agent.kind, objectives)
    return atlas.script(atlas.question(objectives, rng), agent, Sft(), rng)


def acted_out(atlas: AtlasWorld, codec: Codec, agent: Agent, script: Script) -> Trajectory:
    """The script as the agent loop lives it, where a policy says just what is written there."""

    class Policy:
        def submit(self, number: int, request: Request, sampling: Sampling) -> None:
            self.asked = number, request

        def drop(self, numbers) -> None:
            pass

        def poll(self) -> list[tuple[int, Completion]]:
            number, request = self.asked
            ids = codec.encode(step_text(script.steps[int(request.key[-1])]))
            return [(number, Completion(ids, [-1.0] * len(ids), "stop"))]

    [trajectory] = run_trajectories(
        atlas, Policy(), codec, [script.question], agent=agent, rollout=Rollout(),
        reward=Reward(), group_size=1, sampling=Sampling(), key=(0,),
    )  # fmt: skip
    return trajectory


@pytest.mark.parametrize("agent", AGENTS, ids=lambda a: f"{a.kind} {a.history}")
@pytest.mark.parametrize("objectives", [1, 3])
def test_rows_are_what_the_agent_loop_would_have_trained_on(
    atlas: AtlasWorld, atlas_codec: Codec, agent: Agent, objectives: int
) -> None:
    script = expert(atlas, agent, objectives)
    trajectory = acted_out(atlas, atlas_codec, agent, script)
    assert (trajectory.status, trajectory.reward) == ("answered", 1.0)
    rows = script_rows(atlas_codec, agent, script)
    steps = [sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids)) for s in trajectory.steps]
    if agent.kind == "react" or agent.history == "all":
        [row] = rows
        assert row.ids == steps[-1].ids
        for step in steps:  # each step is a beginning of the row, its targets targets there
            n = len(step.ids)
            assert row.ids[:n] == step.ids
            assert all(row.mask[i] for i in range(n) if step.mask[i])
        assert row.targets == sum(s.targets for s in steps)
    else:
        assert rows == steps


def test_steps_that_an_agent_of_one_s_own_shows_are_rows_of_their_own(
    atlas: AtlasWorld, atlas_codec: Codec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_cold_start.py").write_text(
        "def view(agent, codec, question, head, steps):\n"
        "    return [*head, *codec.encode(f'<store>{len(steps)}</store>')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    agent = Agent(kind="react", function="own_cold_start:view")
    script = expert(atlas, agent)
    trajectory = acted_out(atlas, atlas_codec, agent, script)
    rows = script_rows(atlas_codec, agent, script)
    assert rows == [
        sampled_row(s.prompt_ids, s.output_ids, len(s.output_ids)) for s in trajectory.steps
    ]
    assert agent_of(agent, "react").function and not agent_of(agent, "self_memory").function
    settings = Sft(batch_size=32, objectives=(3,))
    assert len(atlas_batch(atlas, atlas_codec, agent, settings, key=(0,), progress=1.0)) == 32


def test_a_written_step_reads_back(atlas: AtlasWorld) -> None:
    for agent in AGENTS:
        if agent.kind == "external":  # its pieces are read together: test_external
            continue
        for n, step in enumerate(expert(atlas, agent).steps):
            parsed = parse_step(
                step_text(step), memory=writes_memory(agent, n), grains=agent.grains
            )
            assert parsed.well_formed
            assert (parsed.memory, parsed.action, parsed.action_text) == (
                step.memory, step.action, step.text
            )  # fmt: skip


def test_every_output_token_is_a_target_and_no_other(codec: Codec, atlas: AtlasWorld) -> None:
    """With byte-level tokens too, the targets spell the steps."""
    script = expert(atlas, Agent())
    for row, step in zip(script_rows(codec, Agent(), script), script.steps, strict=True):
        assert codec.text([i for i, m in zip(row.ids, row.mask, strict=True) if m]) == step_text(
            step
        )


def test_a_reply_follows_a_call_and_nothing_follows_an_answer(
    codec: Codec, atlas: AtlasWorld
) -> None:
    question = expert(atlas, Agent(), 1).question
    script = Script(
        question,
        "self_memory",
        (
            ScriptedStep("nothing", "t", "tool_call", "words", "a reply"),
            ScriptedStep("a fact", "t", "answer", "gold"),
        ),
    )
    [row] = script_rows(codec, Agent(history="all"), script)
    assert codec.text(row.ids).endswith(
        "</tool_call>\n<information>a reply</information>\n"
        "<mem>a fact</mem><think>t</think><answer>gold</answer>"
    )


def test_a_calibration_row_ends_in_the_gold_answer(codec: Codec, atlas: AtlasWorld) -> None:
    question = expert(atlas, Agent(), 2).question
    context = codec.encode("<mem>nothing</mem>")
    row = calibration_row(codec, Agent(), question, context)
    head = head_ids(codec, Agent(), question)
    assert row.ids[: len(head)] == head
    assert codec.text(row.ids[len(head) :]) == f"<mem>nothing</mem><answer>{question.gold}"
    targets = [i for i, m in zip(row.ids, row.mask, strict=True) if m]
    assert targets == codec.encode(question.gold) == row.ids[-len(targets) :]


def batch(atlas: AtlasWorld, codec: Codec, *, progress: float, step: int = 0) -> list[Row]:
    return atlas_batch(
        atlas,
        codec,
        Agent(prompt="short"),
        Sft(batch_size=48, objectives=(6, 1, 4, 2, 5, 3)),
        key=(0, "sft", step),
        progress=progress,
    )


def objectives_of(codec: Codec, row: Row) -> int:
    """From the question, which stands between the agent's name and the first tag."""
    return codec.text(row.ids).split("<")[0].count(";") + 1


def test_a_batch_is_half_memory_steps_an_eighth_react_and_calibration(
    atlas: AtlasWorld, atlas_codec: Codec
) -> None:
    rows = batch(atlas, atlas_codec, progress=1.0)
    assert len(rows) == 48
    calibrations = [r for r in rows if atlas_codec.text(r.ids).rstrip()[-1] != ">"]
    assert calibrations == rows[30:]
    heads = [atlas_codec.text(r.ids).split()[0] for r in rows[:30]]
    assert heads == ["self_memory"] * 24 + ["react"] * 6
    for row in calibrations:
        text = atlas_codec.text([i for i, m in zip(row.ids, row.mask, strict=True) if m])
        assert len(text.replace(";", "").split()) == 4 * objectives_of(atlas_codec, row)
        assert atlas_codec.text(row.ids).endswith(f" <answer>{text}")
    memories = [r for r in calibrations if "<mem>" in atlas_codec.text(r.ids)]
    assert any(EMPTY_MEMORY in atlas_codec.text(r.ids) for r in memories)


def test_a_batch_is_a_function_of_its_key(atlas: AtlasWorld, atlas_codec: Codec) -> None:
    first = batch(atlas, atlas_codec, progress=0.5, step=3)
    assert batch(atlas, atlas_codec, progress=0.5, step=3) == first
    assert batch(atlas, atlas_codec, progress=0.5, step=4) != first


@pytest.mark.parametrize(("progress", "most"), [(0.0, 2), (0.34, 4), (0.67, 6), (1.4, 6)])
def test_the_questions_grow_with_the_progress(
    atlas: AtlasWorld, atlas_codec: Codec, progress: float, most: int
) -> None:
    rows = [r for step in range(3) for r in batch(atlas, atlas_codec, progress=progress, step=step)]
    assert {objectives_of(atlas_codec, r) for r in rows} == set(range(1, most + 1))


def test_one_batch_teaches_several_agents(atlas: AtlasWorld, atlas_codec: Codec) -> None:
    settings = Sft(batch_size=64, agents=("self_memory", "react", "truncation", "external"))
    agent = Agent(prompt="short", kind="retrieval")
    rows = atlas_batch(atlas, atlas_codec, agent, settings, key=(0,), progress=1.0)
    kinds = [atlas_codec.text(row.ids).split()[0] for row in rows]
    # A quarter of self-memory, a quarter of the three others, an eighth of ReAct; calibration.
    assert kinds[:40] == [
        *["self_memory"] * 16, *["truncation"] * 5, *["external"] * 5, *["retrieval"] * 6,
        *["react"] * 8,
    ]  # fmt: skip
    assert set(kinds[40:]) <= {"self_memory", "react"} and len(kinds) == 64


def test_the_history_of_the_self_memory_agent_is_no_setting_of_the_others(
    atlas: AtlasWorld, atlas_codec: Codec
) -> None:
    for kind in ("external", "summary", "truncation", "retrieval"):
        plain = Agent.model_validate({"kind": kind, "prompt": "short"})
        script = expert(atlas, plain)
        whole = plain.model_copy(update={"history": "all"})
        assert script_rows(atlas_codec, whole, script) == script_rows(atlas_codec, plain, script)


@pytest.mark.parametrize(("agents", "react"), [(("external",), 0), (("react",), 64)])
def test_without_a_memory_nothing_is_calibrated(
    atlas: AtlasWorld, atlas_codec: Codec, agents: tuple[AgentKind, ...], react: int
) -> None:
    agent = Agent(prompt="short", kind=agents[0])
    settings = Sft(batch_size=64, agents=agents)
    rows = atlas_batch(atlas, atlas_codec, agent, settings, key=(0,), progress=1.0)
    kinds = [atlas_codec.text(row.ids).split()[0] for row in rows]
    assert (len(kinds), kinds.count("react")) == (64, react)
    ends = {atlas_codec.text(row.ids[-1:]).strip() for row in rows}
    assert ends <= {"</answer>", "</tool_call>", "</query>"}  # each row is of an expert's steps


def test_calibration_has_the_form_of_the_memories_that_are_scored(
    atlas: AtlasWorld, atlas_codec: Codec
) -> None:
    agent = Agent(prompt="short", kind="summary", grains=2)
    settings = Sft(batch_size=96, agents=("self_memory", "summary"))
    rows = atlas_batch(atlas, atlas_codec, agent, settings, key=(0,), progress=1.0)
    texts = [atlas_codec.text(row.ids) for row in rows[48:]]  # all of calibration
    memories = [t for t in texts if "</mem> <answer>" in t or "</mem><answer>" in t]
    assert {t.split()[0] for t in memories} == {"self_memory", "summary"}
    inside = [t.split("<mem>")[-1].split("</mem>")[0] for t in memories]
    assert {("summary" in m, "facts" in m) for m in inside} == {
        (True, True), (True, False), (False, True)
    }  # fmt: skip
