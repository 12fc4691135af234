import json

import pytest

from conf.load import load
from flows.describing import datasets, description


def test_a_description_says_what_the_run_is_and_what_to_do_with_it():
    experiment = load("demo", overrides=["loss.clip=0.3", "agent.history=all"], seed=7)
    text = description(experiment, "train", "0a1b", method="MemPO")
    for part in (
        "**MemPO**. Training with mempo",
        "agent `self_memory`, preset `demo`, seed 7",
        "- `loss.clip`: `0.3`",
        "- `agent.history`: `all`",
        "`mempo train --resume 0a1b`",
        "`mempo reproduce 0a1b`",
        "`mempo report 0a1b`",
    ):
        assert part in text
    assert "differs" not in description(load("demo"), "train", "0a1b", method="MemPO")


def test_what_cannot_go_on_by_itself_is_not_said_to():
    experiment = load("demo")
    for kind, parent in (("sft", ""), ("evaluate", ""), ("train", "9f")):
        text = description(experiment, kind, "0a1b", method="SFT", parent=parent)
        assert "--resume" not in text and "mempo reproduce 0a1b" in text
    assert "study 9f" in description(experiment, "train", "0a1b", method="SFT", parent="9f")
    study = description(experiment, "ablate", "0a1b", method="grpo_vs_mempo")
    assert "`mempo ablate grpo_vs_mempo --resume 0a1b`" in study and "reproduce" not in study


def test_no_value_can_break_out_of_the_description():
    experiment = load("demo", overrides=["policy.model=a`b", f"environment.corpus={'x' * 999}"])
    text = description(experiment, "train", "0a1b", method="MemPO")
    assert "`a'b`" in text and "x" * 201 not in text


def _shown(kind: str, *overrides: str, seed: int = 0, digests: dict[str, str] | None = None):
    found = datasets(load("demo", overrides=overrides, seed=seed), kind, digests or {})
    return {
        given.dataset.name: (given.dataset.digest, given.tags[0].value, given.dataset.source_type)
        for given in found
    }


def test_the_atlas_is_known_by_the_settings_that_make_it():
    first, same = _shown("train"), _shown("train", "loss.clip=0.3")
    assert first == same and set(first) == {"atlas, train", "atlas, eval"}
    other = _shown("train", seed=1)
    assert other["atlas, train"] != first["atlas, train"]
    assert other["atlas, eval"] == first["atlas, eval"]
    assert all(len(digest) == 36 for digest, _, _ in first.values())
    assert set(_shown("evaluate")) == set(_shown("train", "iterations=0")) == {"atlas, eval"}
    assert set(_shown("sft")) == {"atlas, train"} and _shown("ablate") == {}


@pytest.mark.parametrize("split", [False, True])
def test_files_are_known_by_their_hash(split):
    overrides = ["environment.name=dataset", "environment.questions=q.jsonl"]
    overrides += ["environment.corpus=c.jsonl"]
    overrides += ["environment.test_questions=t.jsonl"] if split else []
    digests = {"environment.questions": "a" * 64, "environment.corpus": "c" * 64}
    found = _shown("train", *overrides, digests=digests)
    assert found["questions q.jsonl, train"] == ("a" * 36, "train", "file")
    assert found["corpus c.jsonl, eval"] == ("c" * 36, "eval", "file")
    assert ("test_questions t.jsonl, eval" in found) is split
    assert ("questions q.jsonl, eval" in found) is not split


def test_a_search_server_is_named_in_place_of_its_corpus():
    experiment = load(
        "demo",
        overrides=[
            "environment.name=dataset",
            "environment.questions=q.jsonl",
            "environment.retriever=search_r1",
            "environment.retriever_url=http://host:8000",
        ],
    )
    [_, server] = datasets(experiment, "evaluate", {})
    assert server.dataset.name == "corpus at http://host:8000, eval"
    assert json.loads(server.dataset.source)["retriever"] == "search_r1"
