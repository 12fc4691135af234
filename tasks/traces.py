"""Trajectories as MLflow traces: what the agent saw, said, called and earned, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import mlflow
from mlflow import MlflowClient
from mlflow.entities import SpanType
from mlflow.tracing.constant import CostKey, SpanAttributeKey, TokenUsageKey

from mempo.config import Price
from mempo.types import Step, Trajectory

Decode = Callable[[list[int]], str]

# MLflow's exporter sends to the process's tracking address; there is one per process.
_address_lock = threading.Lock()


def log_traces(
    client: MlflowClient,
    experiment_id: str,
    run_id: str,
    trajectories: Sequence[Trajectory],
    *,
    decode: Decode,
    price: Price | None = None,
) -> list[str]:
    """Write each trajectory as one trace of the run; returns the traces' ids.

    The root is an AGENT span (question in; answer, reward and status out), under it each step is
    an LLM span (prompt in, output out, tokens used and with `price` their cost in US dollars)
    and each call a TOOL span (query in, observation out). Spans carry the time of writing, in
    the order of the steps: a trajectory does not record when it happened.
    """
    with addressed_to(client.tracking_uri):
        return [
            _log_trace(client, experiment_id, run_id, trajectory, decode, price)
            for trajectory in trajectories
        ]


def _log_trace(
    client: MlflowClient,
    experiment_id: str,
    run_id: str,
    trajectory: Trajectory,
    decode: Decode,
    price: Price | None,
) -> str:
    question = trajectory.question
    root = client.start_trace(
        f"{question.objectives}-objective question",
        span_type=SpanType.AGENT,
        inputs={"question": question.text},
        attributes={"gold": question.gold, "source": question.source},
        tags={
            "mempo.question_id": question.id,
            "mempo.rollout": str(trajectory.rollout),
            "mempo.status": trajectory.status,
        },
        experiment_id=experiment_id,
        run_id=run_id,
    )
    for number, step in enumerate(trajectory.steps):
        attributes = {
            "step": number,
            "finish_reason": step.finish_reason,
            "well_formed": step.well_formed,
            "memory": step.memory,
            "policy_version": step.policy_version,
            **_usage(step, price),
        }
        span = client.start_span(
            f"step {number}",
            root.trace_id,
            root.span_id,
            span_type=SpanType.LLM,
            inputs={"prompt": decode(step.prompt_ids)},
            attributes=attributes,
        )
        client.end_span(root.trace_id, span.span_id, outputs={"output": decode(step.output_ids)})
        if step.action == "tool_call":
            call = client.start_span(
                "search",
                root.trace_id,
                root.span_id,
                span_type=SpanType.TOOL,
                inputs={"query": step.action_text},
            )
            client.end_span(root.trace_id, call.span_id, outputs={"observation": step.observation})
    client.end_trace(
        root.trace_id,
        outputs={
            "answer": trajectory.answer,
            "reward": trajectory.reward,
            "f1": trajectory.f1,
            "em": trajectory.em,
            "format": trajectory.format,
            "status": trajectory.status,
        },
        status="ERROR" if trajectory.status == "tool_error" else "OK",
    )
    return root.trace_id


def _usage(step: Step, price: Price | None) -> dict[str, object]:
    prompt, generated = len(step.prompt_ids), len(step.output_ids)
    usage: dict[str, object] = {
        SpanAttributeKey.CHAT_USAGE: {
            TokenUsageKey.INPUT_TOKENS: prompt,
            TokenUsageKey.OUTPUT_TOKENS: generated,
            TokenUsageKey.TOTAL_TOKENS: prompt + generated,
        }
    }
    if price is not None:
        paid_in, paid_out = prompt * price.prompt / 1e6, generated * price.generated / 1e6
        usage[SpanAttributeKey.LLM_COST] = {
            CostKey.INPUT_COST: paid_in,
            CostKey.OUTPUT_COST: paid_out,
            CostKey.TOTAL_COST: paid_in + paid_out,
        }
    return usage


@contextmanager
def addressed_to(uri: str) -> Iterator[None]:
    """`uri` as MLflow's address of the whole process, for what asks nobody else."""
    with _address_lock:
        previous = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
        mlflow.set_tracking_uri(uri)
        try:
            yield
        finally:
            # None is how MLflow spells "not set", whatever its annotation says.
            mlflow.set_tracking_uri(previous)  # pyright: ignore[reportArgumentType]
