"""Does an external-memory agent ask its store when it has to, and only then?"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from mempo.agent.external import turns
from mempo.agent.store import parse_query
from mempo.evaluation.facts import stated
from mempo.types import Trajectory


def store_use(trajectory: Trajectory, facts: Sequence[str]) -> dict[str, float]:
    """How the turn that answered used the store, by the facts that the question asks for.

        queries         queries of the whole trajectory
        asked_needed    share of the facts that were asked for, or came back with another one, of
                        those that only the store holds
        asked_needless  share of the facts that were asked for, of those that are in view: in the
                        reply to the turn before

    A fact is asked for by a query all of whose words it has ("a e" of "a e v w"). NaN where there
    is no such fact, or where the trajectory ended without an answer. A fact that no reply has
    shown (word for word, see `stated`) counts in neither.
    """
    steps = trajectory.steps
    use = {
        "queries": float(sum(s.action == "query" for s in steps)),
        "asked_needed": nan,
        "asked_needless": nan,
    }
    done, _ = turns(steps)
    if not done or done[-1][-1].action != "answer":
        return use
    *before, last = done
    replies = [turn[-1].observation for turn in before]
    queries = [s for s in last if s.action == "query"]
    words = [set(parse_query(s.action_text)[1].split()) for s in queries]
    asked = {fact for fact in facts if any(w and w <= set(fact.split()) for w in words)}
    back = set[str]().union(*(stated(s.observation, facts) for s in queries))
    in_view = set[str]().union(*(stated(reply, facts) for reply in replies[-1:]))
    stored = set[str]().union(*(stated(reply, facts) for reply in replies[:-1])) - in_view
    if stored:
        use["asked_needed"] = len(stored & (asked | back)) / len(stored)
    if in_view:
        use["asked_needless"] = len(in_view & asked) / len(in_view)
    return use
