import os

import mlflow
import pytest

from mempo.config import Price
from mempo.types import Question, Step, Trajectory
from tasks.tracking import Tracker

# MLflow and SQLAlchemy warn about each other, and MLflow about its own annotations.
pytestmark = pytest.mark.filterwarnings("default")

QUESTION = Question("q1", "Where was Ada born?", 1, [["London", "City of London"]])


def step(prompt: int, generated: int, action: str, text: str, observation: str = "") -> Step:
    return Step(
        prompt_ids=list(range(prompt)),
        head_tokens=2,
        output_ids=list(range(generated)),
        logprobs=[-0.5] * generated,
        finish_reason="stop",
        mem_spans=[(0, 1)],
        memory="born: ?",
        action=action,  # pyright: ignore[reportArgumentType]
        action_text=text,
        well_formed=True,
        observation=observation,
    )


def decode(ids: list[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory) -> Tracker:
    return Tracker(experiment="traces", home=str(tmp_path_factory.mktemp("home")))


def test_a_trajectory_is_read_back_as_one_trace_of_its_run(tracker):
    run_id = tracker.start(name="eval", kind="evaluate", params={}, tags={})
    other = tracker.start(name="other", kind="evaluate", params={}, tags={})
    steps = [step(3, 4, "tool_call", "Ada born", "Ada: London"), step(5, 2, "answer", "London")]
    answered = Trajectory(QUESTION, 0, steps, "answered", "London", reward=1.0, em=1.0)
    failed = Trajectory(QUESTION, 1, steps[:1], "tool_error")

    price = Price(prompt=1.0, cached=1.0, generated=10.0, scored=1.0, trained=1.0)
    ids = tracker.log_traces(run_id, [answered, failed], decode=decode, price=price)

    client, experiment_id = tracker.connect()
    found = client.search_traces(locations=[experiment_id], run_id=run_id)
    assert sorted(trace.info.trace_id for trace in found) == sorted(ids)
    assert len(client.search_traces(locations=[experiment_id], run_id=other)) == 0
    trace = next(trace for trace in found if trace.info.trace_id == ids[0])
    assert trace.info.token_usage == {"input_tokens": 8, "output_tokens": 6, "total_tokens": 14}
    assert trace.info.tags["mempo.question_id"] == "q1"
    root, *children = trace.data.spans
    assert (root.span_type, root.inputs) == ("AGENT", {"question": "Where was Ada born?"})
    assert (root.outputs["answer"], root.outputs["reward"]) == ("London", 1.0)
    assert [span.span_type for span in children] == ["LLM", "TOOL", "LLM"]
    assert {span.parent_id for span in children} == {root.span_id}
    assert children[0].inputs == {"prompt": "abc"}
    assert children[0].outputs == {"output": "abcd"}
    assert children[0].get_attribute("mlflow.chat.tokenUsage")["total_tokens"] == 7
    # 3 prompt tokens at 1 $ and 4 generated at 10 $ per million
    assert children[0].get_attribute("mlflow.llm.cost")["total_cost"] == pytest.approx(43e-6)
    assert children[1].inputs == {"query": "Ada born"}
    assert children[1].outputs == {"observation": "Ada: London"}
    states = {trace.info.trace_id: trace.info.state.value for trace in found}
    assert states == {ids[0]: "OK", ids[1]: "ERROR"}


def test_the_tracking_address_of_the_process_is_left_as_it_was(tracker, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id = tracker.start(name="eval", kind="evaluate", params={}, tags={})
    for before in ["sqlite:////nowhere/else.db", None]:
        mlflow.set_tracking_uri(before)  # pyright: ignore[reportArgumentType]
        tracker.log_traces(run_id, [Trajectory(QUESTION, 0, [], "truncated")], decode=decode)
        assert os.environ.get("MLFLOW_TRACKING_URI") == before
        assert mlflow.is_tracking_uri_set() == (before is not None)
