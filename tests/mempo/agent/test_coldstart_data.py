from __future__ import annotations

import pytest

from mempo.agent.coldstart_data import AtlasColdStart, cold_start_data
from mempo.config import Agent, Environment, Experiment, Sft
from mempo.environments.atlas import AtlasWorld
from mempo.policies.codec import Codec

SMALL = Experiment(
    seed=5,
    environment=Environment(entities=10, attributes=4, values=5, reply_facts=3),
    agent=Agent(prompt="short"),
    sft=Sft(steps=30, batch_size=16),
)


@pytest.fixture
def data(atlas: AtlasWorld, atlas_codec: Codec) -> AtlasColdStart:
    made = cold_start_data(SMALL, atlas_codec)
    assert isinstance(made, AtlasColdStart)
    assert made.world.words() == atlas.words()
    return made


def test_a_batch_follows_from_seed_and_step(data: AtlasColdStart, atlas_codec: Codec) -> None:
    assert data.batch(4) == data.batch(4) != data.batch(5)
    other = AtlasColdStart(SMALL.model_copy(update={"seed": 6}), atlas_codec)
    assert other.batch(4) != data.batch(4)


def test_what_is_held_out_is_never_trained_on(data: AtlasColdStart) -> None:
    held_out = {tuple(r.ids) for r in data.held_out()}
    assert len(held_out) == 16
    assert not held_out & {tuple(r.ids) for step in range(30) for r in data.batch(step)}


def test_the_facts_can_be_told(data: AtlasColdStart) -> None:
    assert data.facts() == {"scripted trajectories": "endless", "rows a step": 16}


def test_a_probe_asks_for_the_same_answer_after_the_right_and_after_an_empty_memory(
    data: AtlasColdStart, atlas_codec: Codec
) -> None:
    probes = data.probes()
    assert len(probes) == 64 and probes == data.probes()
    for right, empty in probes:
        answers = [
            atlas_codec.text([t for t, asked in zip(r.ids, r.mask, strict=True) if asked])
            for r in (right, empty)
        ]
        assert answers[0] == answers[1]
        memory = atlas_codec.text(right.ids).split("<mem>")[1].split("</mem>")[0]
        assert memory.split(" , ") == answers[0].split(" ; ")  # all facts, in order
        assert "<mem> nothing</mem>" in atlas_codec.text(empty.ids)
