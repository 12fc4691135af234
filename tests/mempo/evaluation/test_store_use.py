from __future__ import annotations

from collections.abc import Callable
from math import isnan

from mempo.evaluation.store_use import store_use
from mempo.types import Step, Trajectory

FACTS = ["age bob one two", "job ann three four", "home eve five six", "pet sue seven ten"]


def test_facts_in_the_store_and_facts_in_view_are_told_apart(
    make_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> None:
    def call(reply: str) -> Step:
        step = make_step([5], action="tool_call")
        step.observation = reply
        return step

    def query(words: str) -> Step:
        step = make_step([6], action="query")
        step.action_text = words
        return step

    steps = [
        call("age bob one two ; age eve nine nine"),
        call("job ann three four"),
        call("home eve five six"),
        query("segments age bob"),  # needed
        query("summaries home eve"),  # in view
        query("segments pet zoe"),  # of no fact
        make_step([7], action="answer"),
    ]
    use = store_use(make_trajectory(steps), FACTS)
    # Stored: age bob (asked) and job ann (not); in view: home eve (asked); pet sue was never seen.
    assert use == {"queries": 3.0, "asked_needed": 0.5, "asked_needless": 1.0}
    steps[3].observation = "age bob one two ; job ann three four"  # a summary holds both
    assert store_use(make_trajectory(steps), FACTS)["asked_needed"] == 1.0
    use = store_use(make_trajectory([*steps[:3], steps[-1]]), FACTS)
    assert use == {"queries": 0.0, "asked_needed": 0.0, "asked_needless": 0.0}

    use = store_use(make_trajectory(steps[:-1]), FACTS)  # never answered
    assert use["queries"] == 3.0 and isnan(use["asked_needed"]) and isnan(use["asked_needless"])
    use = store_use(make_trajectory([steps[2], steps[-1]]), FACTS)
    assert isnan(use["asked_needed"]) and use["asked_needless"] == 0.0
    assert isnan(store_use(make_trajectory([]), FACTS)["asked_needed"])


def test_a_fact_is_shown_by_its_words_and_not_by_parts_of_others(
    make_step: Callable[..., Step], make_trajectory: Callable[..., Trajectory]
) -> None:
    def call(reply: str) -> Step:
        step = make_step([5], action="tool_call")
        step.observation = reply
        return step

    def asked(*replies: str) -> dict[str, float]:
        return store_use(
            make_trajectory([*map(call, replies), make_step([7], action="answer")]), FACTS
        )

    # 'two' is not 'twofold', nor 'age' the end of 'voyage'.
    assert isnan(asked("age bob one twofold", "voyage bob one two")["asked_needed"])
    assert isnan(asked("age bob one twofold", "voyage bob one two")["asked_needless"])
    # A line break between its words, or a full stop after it, hides no fact.
    assert asked("age bob\none  two.", "nothing")["asked_needed"] == 0.0
    assert asked("age bob\none  two.")["asked_needless"] == 0.0
