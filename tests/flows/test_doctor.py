"""FAULTS 51: what cannot run is refused before the first rollout, in a line naming the setting."""

import json
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from conf.load import load
from flows.doctor import PreflightError, check, preflight
from flows.doctor_data import Kind
from mempo.config import Experiment
from mempo.policies.shipped import model_path

PASSAGES = [
    {"id": "p1", "contents": '"Paris"\nParis is the capital of France.'},
    {"id": "p2", "contents": '"Rome"\nRome is the capital of Italy.'},
]
QUESTIONS = [
    {"id": f"q{i}", "question": f"What is the capital number {i}?", "golden_answers": ["Paris"]}
    for i in range(24)
]


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def closed_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path, model):
    """(question file, corpus file, model folder) that can be used together."""
    return (
        write_lines(tmp_path / "questions.jsonl", QUESTIONS),
        write_lines(tmp_path / "corpus.jsonl", PASSAGES),
        model,
    )


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer of one token a byte, which knows every word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<eos>").save_pretrained(folder)


@pytest.fixture
def model(tmp_path):
    """A folder that looks like a model's, with a tokenizer that knows every word."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 300}')
    save_byte_tokenizer(folder)
    save_file({"w": torch.zeros(4)}, folder / "model.safetensors")
    return folder


def dataset(questions: Path, corpus: Path, model: Path, *more: str) -> Experiment:
    """The smallest experiment over one's own files."""
    return load(
        "test",
        overrides=[
            *("environment.name=dataset", "environment.test_fraction=0.5"),
            *(f"policy.model={model}", "rollout.max_prompt_tokens=200"),
            *(f"environment.questions={questions}", f"environment.corpus={corpus}"),
            *more,
        ],
    )


def refused(experiment: Experiment, kind: Kind = "train") -> str:
    """The refusal, which is one line and is also what `check` finds."""
    with pytest.raises(PreflightError) as caught:
        preflight(experiment, kind)
    message = str(caught.value)
    assert "\n" not in message
    assert message in [finding.message for finding in check(experiment, kind) if not finding.ok]
    return message


def test_the_smallest_experiment_is_fit_to_run():
    findings = check(load("test"))
    assert [finding.message for finding in findings if not finding.ok] == []
    assert len({finding.setting for finding in findings}) == len(findings) >= 9
    preflight(load("test"))


def test_own_files_are_fit_to_run(files):
    preflight(dataset(*files))


def test_fault_51_a_store_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "file" / "runs"))
    message = refused(load("test"))
    assert message.startswith("MEMPO_HOME: cannot write to the folder") and "file/runs" in message


@pytest.mark.parametrize("model", ["models/none", "./none", "/none", "none", "~/none"])
def test_fault_51_a_missing_model_folder(model):
    message = refused(load("test", overrides=[f"policy.model={model}"]))
    assert message.startswith("policy.model: ") and f"there is no folder {model}" in message
    assert "mempo fetch smollm2" in message


def test_a_missing_folder_that_a_command_makes_names_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for model, command in (
        ("models/wiki-sft", "mempo sft --preset wiki"),
        ("models/atlas-agents", "mempo sft --preset agents"),
    ):
        message = refused(load("test", overrides=[f"policy.model={model}"]))
        assert f"there is no folder {model}; `{command}` makes it" in message


def test_fault_51_a_model_folder_without_a_file(model):
    experiment = load("test", overrides=[f"policy.model={model}"])
    preflight(experiment)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (model / name).unlink()
        message = refused(experiment)
        assert message.startswith("policy.model: ") and name in message


def test_fault_51_truncated_weights(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    message = refused(load("test", overrides=[f"policy.model={model}"]))
    assert message.startswith("policy.model: the weights") and "model.safetensors" in message


def test_fault_51_a_missing_shard_of_the_weights(model):
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(4)}, model / "model-1.safetensors")
    message = refused(load("test", overrides=[f"policy.model={model}"]))
    assert "model-2.safetensors" in message


def test_fault_51_lengths_beyond_the_positions_of_the_model(model):
    overrides = [f"policy.model={model}", "rollout.max_prompt_tokens=290"]
    message = refused(load("test", overrides=overrides))  # 290 + 24 > 300
    assert message.startswith("rollout.max_prompt_tokens: 290") and "300 positions" in message


def test_fault_51_a_model_of_the_hub_while_offline(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refused(load("test", overrides=["policy.model=nobody/nothing"]))
    assert message.startswith("policy.model: ") and "HF_HUB_OFFLINE" in message


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"text": ["a?"], "target": ["b"]}, "no question text"),
        ({"question": ["a?"], "target": ["b"]}, "no answers"),
    ],
)
def test_fault_51_a_parquet_file_of_foreign_columns(files, tmp_path, columns, part):
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table(columns), path)
    message = refused(dataset(path, *files[1:]))
    assert message.startswith("environment.questions: ") and "foreign.parquet" in message
    assert part in message and "target" in message


def test_fault_51_a_damaged_parquet_file(files, tmp_path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"question": ["a?"] * 99, "golden_answers": [["b"]] * 99}), path)
    path.write_bytes(path.read_bytes()[:200])
    message = refused(dataset(path, *files[1:]))
    assert message.startswith("environment.questions: ") and "damaged.parquet" in message


def test_fault_51_questions_without_answers(files, tmp_path):
    rows = [*QUESTIONS, {"id": "q24", "question": "And this one?", "golden_answers": []}]
    message = refused(dataset(write_lines(tmp_path / "open.jsonl", rows), *files[1:]))
    assert message.startswith("environment.questions: ") and "open.jsonl, row 25" in message
    assert "no answers" in message


@pytest.mark.parametrize("setting", ["questions", "corpus", "test_questions"])
def test_fault_51_a_missing_file(files, tmp_path, setting):
    none = tmp_path / "none.jsonl"
    message = refused(dataset(*files, f"environment.{setting}={none}"))
    assert message.startswith(f"environment.{setting}: ") and str(none) in message


@pytest.mark.parametrize("setting", ["questions", "corpus"])
def test_fault_51_no_file_named(files, setting):
    message = refused(dataset(*files, f"environment.{setting}="))
    assert message.startswith(f"environment.{setting} is empty")


@pytest.mark.parametrize(
    "override",
    [
        "environment.objectives=[1, 25]",
        "evaluate.objectives=[25]",
        "rollout.questions=999",
        "evaluate.questions=999",
    ],
)
def test_fault_51_more_asked_than_there_is(files, override):
    message = refused(dataset(*files, override))
    setting = override.partition("=")[0]
    assert message.startswith(f"{setting} asks for ") and "split has" in message
    assert message.count(setting) == 1


@pytest.mark.parametrize("section", ["environment", "evaluate"])
def test_fault_51_more_objectives_than_the_atlas_has_facts(section):
    message = refused(load("test", overrides=[f"{section}.objectives=[25]"]))  # 8 x 3 facts
    assert message.startswith(f"{section}.objectives asks for 25 facts") and "24" in message
    assert message.count("objectives") == 1


@pytest.mark.parametrize("retriever", ["search_r1", "recall"])
def test_fault_51_a_search_server_that_is_not_there(files, monkeypatch, closed_url, retriever):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    experiment = dataset(
        *files,
        f"environment.retriever={retriever}",
        f"environment.retriever_url={closed_url}",
    )
    message = refused(experiment)
    assert message.startswith("environment.retriever_url: ") and closed_url in message
    assert "cannot be reached" in message


def test_fault_51_no_address_of_the_search_server(files):
    message = refused(dataset(*files, "environment.retriever=search_r1"))
    assert message.startswith("environment.retriever_url: ")


@pytest.mark.parametrize("kept", ["extractive", "solved"])
def test_a_filter_that_leaves_nothing_is_refused(files, kept):
    message = refused(dataset(*files, f"environment.question_filter={kept}"))
    assert message.startswith(f"environment.question_filter '{kept}' leaves no question")


def test_more_minibatches_than_trajectories_are_refused():
    message = refused(load("test", overrides=["learner.minibatches=5"]))  # of 2 x 2
    assert message.startswith("learner.minibatches: 5") and "4 trajectories" in message


def test_more_cpus_than_the_local_ray_has_are_refused():
    experiment = load("test", overrides=["cluster.cpus=2", "cluster.parallel=3"])
    message = refused(experiment)
    assert message.startswith("cluster.parallel: 3 runs reserve 3 CPUs")


def test_a_run_that_alone_reserves_too_much_is_not_the_fault_of_parallel_runs():
    experiment = load("test", overrides=["cluster.cpus=2", "cluster.sampler_cpus=8"])
    message = refused(experiment)
    assert message.startswith("cluster.sampler_cpus and cluster.learner_cpus: a run reserves 8.5")
    assert "cluster.parallel" not in message
    findings = {finding.setting: finding.ok for finding in check(experiment, "sft")}
    assert findings["cluster"]  # the cold start has no sampler


def test_gpus_that_this_machine_lacks_are_refused():
    message = refused(load("test", overrides=["cluster.learner_gpus=64", "cluster.parallel=1"]))
    assert message.startswith("cluster.learner_gpus: a run reserves 64 GPUs")


def test_a_ray_that_is_not_there_is_refused(closed_url):
    address = closed_url.removeprefix("http://")
    message = refused(load("test", overrides=[f"cluster.address={address}"]))
    assert message.startswith("cluster.address: nothing answers")


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4200/api"])
def test_a_prefect_that_remote_workers_cannot_reach_is_refused(monkeypatch, url):
    if url:
        monkeypatch.setenv("PREFECT_API_URL", url)
    experiment = load("test", overrides=["cluster.address=head.invalid:6379"])
    faults = {finding.setting: finding.message for finding in check(experiment) if not finding.ok}
    assert faults["PREFECT_API_URL"].startswith("PREFECT_API_URL: the workers of head.invalid")


def test_a_configured_prefect_that_is_not_there_is_refused(monkeypatch, closed_url):
    monkeypatch.setenv("PREFECT_API_URL", f"{closed_url}/api")
    assert refused(load("test")).startswith("PREFECT_API_URL: no server answers")


def test_a_tracking_server_that_is_not_there_is_refused(closed_url):
    message = refused(load("test", overrides=[f"tracking.uri={closed_url}"]))
    assert message.startswith("tracking.uri: no MLflow server answers")


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [(200, b"OK", ""), (403, b"Invalid Host header", "--allowed-hosts"), (500, b"", "500")],
)
def test_the_health_of_a_tracking_server(status, body, part):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        experiment = load("test", overrides=[f"tracking.uri={uri}"])
        if part:
            message = refused(experiment)
            assert message.startswith("tracking.uri: ") and part in message
        else:
            preflight(experiment)
        server.shutdown()


def test_a_relative_folder_that_looks_like_a_setting_is_still_named_by_its_setting(
    monkeypatch, tmp_path, model
):
    monkeypatch.chdir(tmp_path)
    shutil.move(model, tmp_path / "policy.v2")
    (tmp_path / "policy.v2" / "tokenizer.json").unlink()
    message = refused(load("test", overrides=["policy.model=policy.v2"]))
    assert message.startswith("policy.model: policy.v2 has no tokenizer.json")


@pytest.mark.parametrize(
    ("kind", "overrides", "setting"),
    [
        ("train", ["agent.kind=external"], "agent.kind"),
        ("train", ["agent.prompt=full"], "agent.prompt"),
        ("sft", ["sft.agents=[self_memory,external]", "sft.model={}"], "sft.agents"),
    ],
)
def test_words_that_the_policy_does_not_know_are_refused(kind, overrides, setting, tmp_path):
    """A vocabulary of an earlier time, without the words of the agents with a store."""
    folder = tmp_path / "older"
    shutil.copytree(model_path("builtin:atlas-sft"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for word in ("external", "<query>", "</query>"):
        del tokenizer["model"]["vocab"][word]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = [f"policy.model={folder}", *(o.format(folder) for o in overrides)]
    with pytest.raises(PreflightError, match=rf"^{setting}: the vocabulary of \S+ lacks words"):
        preflight(load("demo", overrides=named), kind)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_agent_that_the_cold_start_was_not_taught_is_refused(kind):
    preflight(load("demo", overrides=["agent.kind=react"]), kind)
    with pytest.raises(PreflightError, match=r"^agent\.kind: the cold start \S+ was taught to be"):
        preflight(load("demo", overrides=["agent.kind=truncation"]), kind)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["agent.embedding_model=models/none"], "it has no effect with agent.kind self_memory"),
        (["agent.kind=external", "agent.embedding_model=models/none"], "there is no folder"),
    ],
)
def test_an_encoder_that_is_missing_or_useless_is_refused(overrides, said):
    experiment = load("demo", overrides=["policy.model=tiny", *overrides])
    with pytest.raises(PreflightError, match=rf"^agent\.embedding_model: {said}.*(BM25|leave)"):
        preflight(experiment)
