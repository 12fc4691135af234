"""FAULTS 51: functions of one's own that cannot be used are refused before the first rollout."""

import pytest

from conf.load import load
from flows.doctor import PreflightError, check, preflight

MODULE = """
def reward(trajectory): return 0.0
def memory(question, steps, p_mem_S, p_full_S): return p_mem_S
def view(agent, codec, question, head, steps): return list(head)
def tool(question, query): return query
"""
RIGHT = {
    "reward.function": "own_of_the_doctor:reward",
    "memory.function": "own_of_the_doctor:memory",
    "agent.function": "own_of_the_doctor:view",
    "environment.tool": "own_of_the_doctor:tool",
}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "own_of_the_doctor.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def experiment(**paths: str):
    return load("test", overrides=[f"{s}={p}" for s, p in {**RIGHT, **paths}.items()])


def test_what_is_right_is_found_and_told():
    findings = {f.setting: f for f in check(experiment())}
    for setting, path in RIGHT.items():
        assert findings[setting].ok and findings[setting].message.startswith(f"{path}, file sha256")
    assert not {f.setting for f in check(load("test"))} & set(RIGHT)
    preflight(experiment())


@pytest.mark.parametrize("kind", ["train", "evaluate", "sft"])
@pytest.mark.parametrize("setting", RIGHT)
def test_fault_51_each_path_is_checked_before_any_kind_of_run(setting, kind):
    other = "reward.function" if setting == "environment.tool" else "environment.tool"
    for path, part in (
        ("own_of_nobody:f", "there is no module own_of_nobody"),
        ("own_of_the_doctor:f", "has no 'f'"),
        (RIGHT[other], "; write def "),
    ):
        with pytest.raises(PreflightError) as caught:
            preflight(experiment(**{setting: path}), kind)
        message = str(caught.value)
        assert message.startswith(f"{setting}: ") and part in message and "\n" not in message
