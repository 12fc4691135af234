"""Each flow once, tiny but real: Prefect server, Ray actors, MLflow; values read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pandas as pd
import pytest

from conf.load import load
from mempo.config import Experiment

# Prefect, Ray and MLflow warn in ways that are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")


def experiment(*overrides: str, seed: int = 3) -> Experiment:
    return load("test", overrides=["cluster.cpus=2", *overrides], seed=seed)


@pytest.fixture(scope="module")
def trained(cold: SimpleNamespace):
    from flows.train import train

    run = experiment(
        cold.start, "rollout.max_step_tokens=48", "checkpoint.keep=1", "evaluate.passes=2"
    )
    return SimpleNamespace(result=train(run, name="a run"), experiment=run)


def tracker():
    from tasks.tracking import Tracker

    return Tracker()


def points(run_id: str, key: str) -> dict[int, float]:
    return {m.step: m.value for m in tracker().metric_history(run_id, key)}


def test_sft_logs_its_losses_and_leaves_a_model_that_transformers_loads(cold: SimpleNamespace):
    from transformers import AutoModelForCausalLM

    losses = points(cold.result.run_id, "sft/loss")
    assert list(losses) == [1, 2, 3]  # 2 steps and 1 final step, in chunks of 1
    assert all(math.isfinite(v) and v > 0 for v in losses.values())
    for name in ("p_answer_right_memory", "p_answer_empty_memory", "right_beats_empty_frac"):
        assert 0 <= points(cold.result.run_id, f"sft/{name}")[3] <= 1
    assert AutoModelForCausalLM.from_pretrained(cold.result.checkpoint).config.hidden_size == 128
    info = tracker().run_info(cold.result.run_id)
    assert (info.status, info.tags["mempo.kind"]) == ("FINISHED", "sft")


def test_a_cold_start_of_an_agent_without_a_memory_has_no_memory_to_probe(home: Path):
    from flows.sft import sft

    result = sft(experiment("agent.kind=react", "sft.agents=[react]"))
    assert result.metrics is not None and result.metrics["sft/held_out_loss"] > 0
    assert "sft/p_answer_right_memory" not in result.metrics


def test_train_logs_every_metric_of_every_iteration(trained: SimpleNamespace):
    run_id = trained.result.run_id
    names = (
        "reward/mean reward/f1 reward/em reward/format group/zero_std_frac rollout/steps "
        "rollout/truncated_frac audit/logprob_diff_mean audit/logprob_diff_max cost/prompt_tokens "
        "cost/generated_tokens cost/cached_tokens cost/scored_tokens cost/trained_tokens cost/usd "
        "memory/weight time/rollout_s time/score_s time/train_s time/checkpoint_s time/iteration_s"
    )
    for name in names.split():
        assert list(points(run_id, name)) == [1, 2], name
    assert max(points(run_id, "audit/logprob_diff_max").values()) < 1e-3
    for k in (1, 2):
        for area in ("eval", "eval_sampled"):
            extra = ("usd", "em_sum", "f1_sum")
            for name in ("f1", "em", "format", "tt", "pt", "steps", *extra):
                found = points(run_id, f"{area}/n{k}/{name}")
                assert list(found) == [0, 2]  # before and after
                assert found[2] == trained.result.metrics[f"{area}/n{k}/{name}"]


def test_train_tags_params_and_files_are_where_others_look_for_them(
    trained: SimpleNamespace, home: Path
):
    from conf.load import sha256

    info = tracker().run_info(trained.result.run_id)
    assert info.status == "FINISHED"
    assert info.tags["mempo.kind"] == "train"
    assert info.tags["mempo.algorithm"] == "mempo"
    assert info.tags["mempo.agent"] == "self_memory"
    assert info.tags["mempo.preset"] == "test"
    assert info.tags["mempo.seed"] == "3"
    assert info.tags["mempo.config_sha256"] == sha256(trained.experiment)
    assert info.tags["prefect.flow_run_id"]
    assert info.params["loss.clip"] == "0.0"  # the policy's own
    assert f"`mempo reproduce {info.run_id}`" in info.tags["mlflow.note.content"]
    read = tracker().connect()[0].get_run(info.run_id).inputs
    assert read is not None
    assert {data.dataset.name for data in read.dataset_inputs} == {"atlas, train", "atlas, eval"}
    folder = home / "store" / trained.result.run_id
    assert (folder / "config.yaml").is_file()
    kept = sorted(f.name for f in (folder / "checkpoints").iterdir())
    assert kept == ["000002", "measured.json"]  # keep 1
    table = pd.read_parquet(folder / "iterations" / "000001" / "rollouts.parquet")
    columns = (
        "question_id rollout step prompt_ids output_ids logprobs mem_spans action action_text "
        "observation status policy_version reward f1 em format p_answer_mem p_answer_full "
        "adv_traj adv_mem"
    )
    assert set(columns.split()) <= set(table.columns)
    assert (table.prompt_ids.str.len() > 0).all()
    assert (table.output_ids.str.len() == table.logprobs.str.len()).all()
    assert table.groupby(["question_id", "rollout"]).ngroups == 4  # 2 questions x 2 rollouts


def test_cost_is_the_tokens_of_the_rollout_file_at_the_configured_prices(
    trained: SimpleNamespace, home: Path
):
    run_id, price = trained.result.run_id, trained.experiment.price
    folder = home / "store" / run_id / "iterations" / "000002"
    table = pd.read_parquet(folder / "rollouts.parquet")
    prompt, generated = table.prompt_ids.str.len().sum(), table.output_ids.str.len().sum()
    assert points(run_id, "cost/prompt_tokens")[2] == prompt
    assert points(run_id, "cost/generated_tokens")[2] == generated
    cached = table.cached_tokens.sum()
    assert points(run_id, "cost/cached_tokens")[2] == cached > 0  # a group's prompt, once
    expected = (
        (prompt - cached) * price.prompt
        + cached * price.cached
        + generated * price.generated
        + points(run_id, "cost/scored_tokens")[2] * price.scored
        + points(run_id, "cost/trained_tokens")[2] * price.trained
    ) / 1e6
    assert points(run_id, "cost/usd")[2] == pytest.approx(expected)


def test_checkpoints_are_logged_models_with_address_size_and_hash(
    trained: SimpleNamespace, home: Path
):
    from tasks.store import folder_digest

    client, experiment_id = tracker().connect()
    models = client.search_logged_models([experiment_id])
    mine = [m for m in models if m.source_run_id == trained.result.run_id]
    assert sorted(m.params["step"] for m in mine) == ["1", "2"]
    newest = next(m for m in mine if m.params["step"] == "2")
    size, sha256 = folder_digest(Path(trained.result.checkpoint))
    assert newest.params["uri"] == Path(trained.result.checkpoint).as_uri()
    assert (newest.params["bytes"], newest.params["sha256"]) == (str(size), sha256)
    older = next(m for m in mine if m.params["step"] == "1")
    assert older.tags["mempo.deleted"] == "true"


def test_the_trained_checkpoint_is_the_policy_that_was_evaluated(
    trained: SimpleNamespace, cold: SimpleNamespace
):
    from flows.evaluate import evaluate

    again = evaluate(
        trained.experiment.model_copy(
            update={
                "policy": trained.experiment.policy.model_copy(
                    update={"model": trained.result.checkpoint}
                )
            }
        )
    )
    assert again.metrics is not None
    for name, value in trained.result.metrics.items():
        assert again.metrics[name] == pytest.approx(value, nan_ok=True), name
    info = tracker().run_info(again.run_id)
    assert (info.tags["mempo.kind"], info.tags["mempo.algorithm"]) == ("evaluate", "none")


def test_a_sampled_question_is_answered_in_passes_with_draws_of_their_own(
    trained: SimpleNamespace,
):
    client, _ = tracker().connect()
    file = client.download_artifacts(trained.result.run_id, "evaluation/tasks.json")
    tasks = pd.DataFrame(json.loads(Path(file).read_text()))
    counts = tasks.groupby(["mode", "objectives", "question_id"])["pass"].apply(list)
    assert all(counts.loc["greedy"].map(lambda passes: passes == [0]))
    assert all(counts.loc["sampled"].map(lambda passes: passes == [0, 1]))
    assert len(counts) == 8  # two modes, two numbers of objectives, two questions
    assert (tasks["step_context_tokens"].map(sum) == tasks["tt"]).all()
    folder = Path(trained.result.folder) / "iterations" / "000002"
    steps = pd.read_parquet(folder / "evaluate-n2-sampled.parquet")
    first = steps[steps.step == 0].groupby("rollout")["output_ids"].apply(list)
    assert any(list(a) != list(b) for a, b in zip(first[0], first[1], strict=True))


def test_trajectories_are_traces_of_the_run(trained: SimpleNamespace):
    client, experiment_id = tracker().connect()
    traces = client.search_traces(locations=[experiment_id], run_id=trained.result.run_id)
    assert len(traces) == 4  # two evaluations, two trajectories each
    kinds = {span.span_type for trace in traces for span in trace.data.spans}
    assert {"AGENT", "LLM"} <= kinds


def test_fault_46_many_rollouts_make_a_handful_of_task_runs(cold: SimpleNamespace):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    from flows.train import train

    run = experiment(
        cold.start,
        "iterations=1",
        "rollout.questions=125",
        "rollout.group_size=16",
        "rollout.max_step_tokens=2",
        "evaluate.before=false",
        "evaluate.sampled=false",
        "evaluate.objectives=[1]",
    )
    result = train(run)
    table = pd.read_parquet(Path(result.folder) / "iterations" / "000001" / "rollouts.parquet")
    assert table.groupby(["question_id", "rollout"]).ngroups == 2000
    flow_run = tracker().run_info(result.run_id).tags["prefect.flow_run_id"]
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
        )
    assert 4 <= len(found) <= 6  # rollout, score, train, checkpoint, evaluate


def test_fault_49_another_learning_rate_is_computed_and_not_served_from_a_cache(home: Path):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    from flows.train import train

    # A policy that answers at times, so that there is something to learn.
    start = ("policy.model=builtin:atlas-sft", "rollout.group_size=4", "environment.objectives=[2]")
    room = ("rollout.max_step_tokens=96", "rollout.max_prompt_tokens=512")
    small = (*room, "iterations=1", "evaluate.before=false", "evaluate.sampled=false")
    rates = ("learner.lr=1e-3", "learner.lr=1e-2")
    results = [train(experiment(*start, *small, rate)) for rate in rates]
    weights = [(Path(r.checkpoint) / "model.safetensors").read_bytes() for r in results]
    assert weights[0] != weights[1]
    flow_runs = [UUID(tracker().run_info(r.run_id).tags["prefect.flow_run_id"]) for r in results]
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=flow_runs))
        )
    assert len(found) >= 8
    assert {run.state_name for run in found} == {"Completed"}  # none is "Cached"


def test_fault_44_metrics_logged_in_a_ray_worker_land_in_the_run_they_name(home: Path):
    import ray

    runs = tracker()
    kwargs = {"kind": "train", "params": {}, "tags": {}}
    right = runs.start(name="right", **kwargs)
    wrong = runs.start(name="wrong", **kwargs)

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"MLFLOW_RUN_ID": wrong}})
    def log(to: str) -> None:
        runs.log_metrics(to, {"reward/mean": 0.25}, 7)

    ray.get(log.remote(right))
    assert points(right, "reward/mean") == {7: 0.25}
    assert points(wrong, "reward/mean") == {}


def test_a_report_needs_nothing_but_mlflow(trained: SimpleNamespace, tmp_path: Path):
    from flows.report import report_runs

    markdown = tmp_path / "page.md"
    markdown.write_text("<!-- results:x -->\n<!-- end:x -->")
    page, table = report_runs(
        tracker(), [trained.result.run_id], tmp_path / "report", into=f"{markdown}#x"
    )
    assert "| MemPO | 2 | greedy |" in markdown.read_text()
    text = page.read_text()
    assert "MemPO" in text and "<details" in text
    assert "MemPO" in table
    shown = json.dumps(table)
    assert "nan" not in shown


def test_fault_50_evaluation_is_greedy_by_default_and_says_so(trained: SimpleNamespace):
    info = tracker().run_info(trained.result.run_id)
    assert info.params["evaluate.temperature"] == "0.0"
    assert info.params["rollout.temperature"] == "1.0"
