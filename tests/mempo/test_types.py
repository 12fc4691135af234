from __future__ import annotations

from mempo.types import Question


def test_the_gold_answer_joins_the_first_alias_of_each_objective() -> None:
    q = Question("q", "Where? When?", 2, [["Paris", "Lutetia"], ["1910"]])
    assert q.gold == "Paris; 1910"
