import pytest

from flows import progress
from flows.progress import Countdown, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_a_duration_is_read_at_a_glance(seconds, text):
    assert duration(seconds) == text


def test_what_is_left_follows_from_the_work_that_is_over(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    countdown = Countdown({"taken": 50, "quick": 10, "long": 30, "last": 60})
    assert countdown.settle("taken", cost_time=False) == "1 of 4 runs are over"
    now[0] = 120.0
    # 10 of work took 20 s, so 90 take 180 s; what was taken over says nothing about that.
    assert countdown.settle("quick") == "2 of 4 runs are over after 20 s, about 3 min left"
    now[0] = 140.0  # 40 of work in 40 s, so 60 take 60 s
    assert countdown.settle("long") == "3 of 4 runs are over after 40 s, about 1 min left"
    assert countdown.settle("last") == "4 of 4 runs are over"


def test_a_line_names_its_run_and_goes_to_stderr(capsys):
    progress.say("done", "grpo seed 1")
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.endswith("] grpo seed 1: done\n")


def test_fault_24_where_most_is_cut_off_the_settings_to_raise_are_named(capsys):
    progress.warn_cut_off(0.5, "rollouts")
    assert capsys.readouterr().err == ""
    progress.warn_cut_off(0.75, "tasks of 2 objective(s), greedy,", "grpo seed 1")
    assert capsys.readouterr().err.endswith(
        "grpo seed 1: warning: 75% of the tasks of 2 objective(s), greedy, were cut off; raise "
        "rollout.max_step_tokens or rollout.max_prompt_tokens\n"
    )
