"""What the train flow says of an iteration that ran and yet taught little."""

from flows.train import _warnings


def test_an_iteration_in_which_most_was_cut_off_is_warned_of():
    assert _warnings({"rollout/truncated_frac": 0.5}) == []
    (line,) = _warnings({"rollout/truncated_frac": 0.75})
    assert line.startswith("75% of the rollouts were cut off; raise rollout.max_step_tokens")


def test_an_iteration_of_dpo_without_a_pair_is_warned_of():
    assert _warnings({"rollout/truncated_frac": 0.0, "loss/pairs": 0.5}) == []
    (line,) = _warnings({"rollout/truncated_frac": 0.0, "loss/pairs": 0.0})
    assert "found no pair" in line and "rollout.group_size" in line
