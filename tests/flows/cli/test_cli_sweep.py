"""`mempo sweep` from a shell; nothing is run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conf.sweep import load_sweep, sweeps
from flows import run

RESULT = SimpleNamespace(run_id="abc", failed={}, trials=12)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    calls: list[tuple] = []
    monkeypatch.setattr(run, "sweep", lambda *args: calls.append(args) or RESULT)
    return calls


def test_options_reach_the_sweep_and_the_line_that_goes_on(mempo, calls):
    arguments = ("--seeds", "101,102", "--parallel", "2", "--set", "iterations=16")
    assert mempo("sweep", "demo", *arguments).exit_code == 0
    [(plan, resume, again)] = calls
    assert (plan.seeds, plan.parallel, plan.first.iterations) == ((101, 102), 2, 16)
    typed = "mempo sweep demo --set iterations=16 --set cluster.parallel=2 --seeds 101,102"
    assert (resume, again) == ("", typed)


def test_the_run_to_go_on_with_is_passed_on(mempo, calls):
    assert mempo("sweep", "demo", "--cluster", "ray", "--resume", "auto").exit_code == 0
    [(plan, resume, again)] = calls
    assert (resume, again) == ("auto", "mempo sweep demo --cluster ray")
    assert plan.first.cluster.sampler_gpus == 1


def test_it_ends_with_1_where_trials_failed(mempo, monkeypatch):
    failed = SimpleNamespace(failed={"trial 3": "out of memory"}, trials=12)
    monkeypatch.setattr(run, "sweep", lambda *args: failed)
    result = mempo("sweep", "demo")
    assert result.exit_code == 1 and "mempo: 1 of 12 trials failed" in result.stderr


def test_a_sweep_is_listed_and_nothing_started(mempo, calls):
    result = mempo("sweep", "memory_credit", "--list", "--seeds", "7")
    assert result.exit_code == 0 and calls == []
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "8 trials (grid), 1 at a time"
    assert "memory.reward contrast, posterior" in lines
    point = "memory.reward=posterior memory.group=step memory.schedule=linear"
    assert lines[-1] == f"trial 7 {point}"
    assert "learner.lr 0.0001 to 0.001, logarithmic" in [
        " ".join(line.split()) for line in mempo("sweep", "demo", "--list").stdout.splitlines()
    ]


def test_the_help_names_sweeps_and_shows_one_that_loads(mempo, tmp_path):
    text = mempo("sweep", "--help").stdout
    example = text[text.index("    description:") : text.index("\nArguments:")]
    (tmp_path / "mine.yaml").write_text(example.replace("\n    ", "\n").strip())
    plan = load_sweep(str(tmp_path / "mine.yaml"))
    assert (plan.trials, plan.prune, len(plan.space)) == (20, True, 3)
    for name in sweeps():
        assert f"\n  {name} " in text and f"\n  {name} " in mempo("--help").stdout


@pytest.mark.parametrize("number", ["0", "-1"])
def test_trials_at_once_are_refused_by_their_option(mempo, number):
    result = mempo("sweep", "demo", "--parallel", number)
    assert result.exit_code == 2 and "Invalid value for '--parallel'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("dmeo",), "unknown sweep 'dmeo'"),
        (("demo", "--seeds", "1,x"), "--seeds '1,x'"),
        (("demo", "--seeds", ""), "--seeds: empty"),
        (("demo", "--resume", ""), "--resume: empty"),
        (("demo", "--list", "--resume", "auto"), "drop one"),
        (("demo", "--set", "learner.lr=1"), "both name learner.lr"),
    ],
)
def test_bad_input_is_refused_in_one_line_with_2(refused, arguments, part):
    assert part in refused("sweep", *arguments)
