"""The external-memory agent: what leaves its context goes into a store, and it may ask for it.

A query may open at any token of a step (in its thought, in its answer). The step is cut there,
the reply follows, and the policy goes on writing where it was: `<query>segments words</query>`
or `<query>summaries words</query>`. Each piece is a `Step` of its own, trained in the context it
was sampled in; the pieces up to the next tool call or answer are one turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mempo.agent import store
from mempo.agent.protocol import TAG, ParsedStep, parse_step
from mempo.config import Agent
from mempo.policies.codec import Codec
from mempo.types import Question, Step

_QUERY = re.compile(r"<query>(.*?)</query>", re.DOTALL)


def turns(steps: Sequence[Step]) -> tuple[list[list[Step]], list[Step]]:
    """(finished turns, the pieces of the turn that is being written)."""
    done: list[list[Step]] = []
    open_turn: list[Step] = []
    for step in steps:
        open_turn.append(step)
        if step.action != "query":
            done.append(open_turn)
            open_turn = []
    return done, open_turn


def view(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """The outline of the store, the last turn, and what this turn has written."""
    done, open_turn = turns(steps)
    outline = store.outline(stored(agent, steps))
    context = [*head, *codec.encode(f"<store>{outline}</store>\n")] if outline else list(head)
    for step in [*(done[-1] if done else []), *open_turn]:
        context += [*step.output_ids, *step.observation_ids]
    return context


def stored(agent: Agent, steps: Sequence[Step]) -> list[store.Entry]:
    """The store before step `len(steps)`: the tool replies of all turns but the last."""
    done, _ = turns(steps)
    calls = [(turn[-1].action_text, turn[-1].observation) for turn in done[:-1]]
    return store.build(calls, fold_every=agent.fold_every)


def answer_query(agent: Agent, steps: Sequence[Step]) -> str:
    """The store's reply to the query that the last of `steps` ends with."""
    *before, last = steps
    entries = stored(agent, before)
    return store.lookup(entries, last.action_text, agent.retrieved, model=agent.embedding_model)


def retrieved_ids(codec: Codec, reply: str) -> list[int]:
    """The store's reply as it follows the query."""
    return codec.encode(f"<retrieved>{reply}</retrieved>")


def parse_piece(written: str, text: str) -> ParsedStep:
    """Read a piece of a turn. `written`: the earlier pieces' text without their queries.

    A piece that ends in a query is well formed if the turn so far, which may be nothing, begins
    like a step of the protocol, and the query names a kind and says something.
    """
    query = _QUERY.search(text)
    if query is None:
        return parse_step(written + text, memory=False)
    kind, words = store.parse_query(query.group(1))
    before = (written + text[: query.start()]).strip()
    tags = TAG.findall(before)
    expected = ("<think>", "</think>", "<answer>", "</answer>")
    call = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    fits = len(tags) < 4 and tuple(tags) in (expected[: len(tags)], call[: len(tags)])
    starts = not before or before.startswith("<think>")
    well_formed = fits and starts and kind is not None and bool(words)
    return ParsedStep(None, None, "query", query.group(1).strip(), well_formed)


def written(codec: Codec, steps: Sequence[Step]) -> str:
    """The text of the turn that is being written, its queries left out."""
    _, open_turn = turns(steps)
    return "".join(_QUERY.sub("", codec.text(step.output_ids)) for step in open_turn)
