"""A tool of one's own in place of a world's search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mempo.config import Environment
from mempo.environments import make_world
from mempo.environments.own_tool import OwnTool
from mempo.environments.world import ToolError
from mempo.types import Question

MODULE = """
from mempo.environments.world import ToolError
def tool(question, query):
    if query == "down":
        raise ToolError("503")
    if query == "wrong":
        return 7
    return question.id + ": " + {"a": "A", "b": "B"}[query]
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "own_tool_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_tool_of_a_test:tool"


def test_fault_35_each_call_is_answered_or_fails_alone(
    path: str, make_question: Callable[..., Question]
) -> None:
    world = make_world(Environment(tool=path), lambda text: text)
    questions = [make_question(id=i) for i in "vwxyz"]
    replies = world.reply(questions, ["a", "down", "wrong", "c", "b"])
    assert [replies[0], replies[4]] == ["v: A", "z: B"]
    assert [type(reply) for reply in replies[1:4]] == [ToolError] * 3
    assert str(replies[1]) == "503"
    assert "own_tool_of_a_test:tool returned a int; return a str" in str(replies[2])
    assert "failed (KeyError: 'c')" in str(replies[3])


def test_questions_and_step_limits_stay_the_world_s(path: str) -> None:
    plain, own = (make_world(Environment(tool=t), lambda text: text) for t in ("", path))
    assert isinstance(own, OwnTool) and not isinstance(plain, OwnTool)
    asked = plain.questions("train", 2, objectives=3, key=(1,))
    assert own.questions("train", 2, objectives=3, key=(1,)) == asked
    assert own.max_steps(asked[0]) == plain.max_steps(asked[0]) == 5


def test_a_dataset_with_a_tool_of_one_s_own_needs_no_corpus(path: str, tmp_path: Path) -> None:
    lines = [f'{{"question": "Who is {i}?", "golden_answers": ["x"]}}\n' for i in range(6)]
    (tmp_path / "q.jsonl").write_text("".join(lines))
    settings = Environment(name="dataset", questions=str(tmp_path / "q.jsonl"))
    with pytest.raises(ValueError, match=r"environment\.corpus is empty"):
        make_world(settings, lambda text: text)
    world = make_world(settings.model_copy(update={"tool": path}), lambda text: text)
    [question] = world.questions("train", 1, objectives=1, key=(0,))
    assert world.reply([question], ["a"]) == [f"{question.id}: A"]
    filtered = settings.model_copy(update={"tool": path, "question_filter": "solved"})
    with pytest.raises(ValueError, match=r"environment\.corpus is empty"):
        make_world(filtered, lambda text: text)
