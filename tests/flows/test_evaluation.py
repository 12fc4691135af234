"""What an evaluation says and logs, its stages and its actors stood in for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conf.load import load
from flows import evaluation
from tasks.placement import Models


def test_fault_24_an_evaluation_that_is_mostly_cut_off_names_the_settings_to_raise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = {1: 0.75, 2: 0.5}

    def evaluate(*given: Any) -> tuple[dict[str, float], dict[str, float]]:
        *_, folder, k, mode = given
        (folder / f"evaluate-n{k}-{mode}.json").write_text("[]")
        names = ("f1", "em", "p_answer")
        found = {f"eval/n{k}/{name}": 0.25 for name in names}
        return found | {f"eval/n{k}/truncated_frac": shares[k]}, {}

    monkeypatch.setattr(evaluation.store, "iteration_folder", lambda *_: tmp_path)
    monkeypatch.setattr(evaluation.stages, "run", evaluate)
    monkeypatch.setattr(evaluation.placement, "wait", lambda *_: [])
    logged: dict[str, float] = {}
    record: Any = SimpleNamespace(
        run_id="r",
        log=lambda metrics, step: logged.update(metrics),
        tracker=SimpleNamespace(log_text=lambda *_: None),
    )
    sampler = SimpleNamespace(describe=SimpleNamespace(remote=lambda *_: None))
    models = Models([sampler], [])
    experiment = load(
        "test",
        overrides=["evaluate.objectives=[1,2]", "evaluate.sampled=false", "tracking.traces=0"],
        seed=3,
    )
    evaluation.evaluate_policy(experiment, record, models, 0, "a run")
    assert (logged["eval/n1/truncated_frac"], logged["eval/n2/truncated_frac"]) == (0.75, 0.5)
    [warning] = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warning.endswith(
        "a run: warning: 75% of the tasks of 1 objective(s), greedy, were cut off; raise "
        "rollout.max_step_tokens or rollout.max_prompt_tokens"
    )
