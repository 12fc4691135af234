"""What a step sees: one small function per agent, all of one signature.

A context is made of token ids as they were sampled, and is a function of the question and the
steps so far, so any step can be checked again later. An agent of your own (`agent.function`) is
one more function of the type `View`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral

from mempo import own
from mempo.agent import external
from mempo.agent.protocol import SUMMARISE, information_ids, memory_block_ids
from mempo.agent.similarity import most_similar
from mempo.config import Agent, writes_memory
from mempo.policies.codec import Codec
from mempo.types import Question, Step

View = Callable[[Agent, Codec, Question, Sequence[int], Sequence[Step]], list[int]]


def context_ids(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """Ids that the policy sees before step `len(steps)`.

    head: system prompt and question; every context begins with it.

    Raises:
        ValueError: `agent.function` cannot be used, raised, or returned something that is no list
            of token ids beginning with the head; names the function and the question.
    """
    if agent.function:
        return _own(agent, codec, question, head, steps)
    view: View
    match agent.kind:
        case "self_memory":
            view = _self_memory
        case "react":
            view = _react
        case "truncation":
            view = _truncation
        case "summary":
            view = _summary
        case "retrieval":
            view = _retrieval
        case "external":
            view = external.view
    return view(agent, codec, question, head, steps)


def _own(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """What `agent.function` shows; P(answer | memory) is scored after its head, so it has one."""
    path = agent.function
    where = f"question {question.id}, step {len(steps)}"
    ids = own.call("agent.function", path, where, agent, codec, question, head, steps)
    if not isinstance(ids, list) or not all(isinstance(i, Integral) for i in ids):
        raise ValueError(
            f"agent.function: {path} returned a {type(ids).__name__} that is no list of token ids "
            f"on {where}; return [*head, ...]"
        )
    if ids[: len(head)] != list(head):
        raise ValueError(
            f"agent.function: {path} returned ids that do not begin with the head on {where}; "
            "return [*head, ...]"
        )
    return [int(i) for i in ids]


def _joined(head: Sequence[int], steps: Sequence[Step]) -> list[int]:
    return [*head, *(i for step in steps for i in (*step.output_ids, *step.observation_ids))]


def _react(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """Everything that happened."""
    return _joined(head, steps)


def _self_memory(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """The last `history` steps, each with its memory and its reply.

    'all': every step. 'memory': the last <mem> block and the latest reply alone.
    """
    match agent.history:
        case "all":
            return _joined(head, steps)
        case "memory" if steps:
            last = steps[-1]
            block = memory_block_ids(codec, last.output_ids) if last.mem_spans else []
            return [*head, *block, *last.observation_ids]
        case "memory":
            return list(head)
        case k:
            return _joined(head, steps[-int(k) :])


def _truncation(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """The last `window` steps; what is older is lost, as nothing is written down."""
    return _joined(head, steps[-agent.window :])


def _summary(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """All steps since the last summary, the one that wrote it included.

    Every `summary_every`-th step is told to write one, and still sees what it sums up.
    """
    every = agent.summary_every
    context = _joined(head, steps[max(len(steps) - 1, 0) // every * every :])
    if writes_memory(agent, len(steps)):
        context += codec.encode(f"{SUMMARISE}\n")
    return context


def _retrieval(
    agent: Agent, codec: Codec, question: Question, head: Sequence[int], steps: Sequence[Step]
) -> list[int]:
    """The last step and, before it, the `retrieved` older ones most similar to now.

    Similar to the question and to what the last step said; put back whole, in their order.
    """
    if len(steps) < 2:
        return _joined(head, steps)
    *old, last = steps
    now = f"{question.text} {codec.text(last.output_ids)}"
    segments = [f"{codec.text(s.output_ids)} {s.observation}" for s in old]
    chosen = most_similar(now, segments, agent.retrieved, model=agent.embedding_model)
    return _joined(head, [*(old[i] for i in sorted(chosen)), last])


def without_memories(steps: Sequence[Step]) -> list[Step]:
    """The steps with their memories' own tokens taken out; tags and all else stay."""
    emptied = []
    for step in steps:
        inside = {i for start, end in step.mem_spans for i in range(start, end)}
        kept = [token for i, token in enumerate(step.output_ids) if i not in inside]
        emptied.append(replace(step, output_ids=kept, mem_spans=[]))
    return emptied


def reply_ids(codec: Codec, step_action: str, reply: str) -> list[int]:
    """A reply as it follows the step that asked for it: of a tool, or of the agent's own store."""
    match step_action:
        case "query":
            return external.retrieved_ids(codec, reply)
        case _:
            return information_ids(codec, reply)
