"""`mempo bench` as it is called; what an iteration's overhead is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import bench
from flows.cli import app


def test_a_part_that_fails_takes_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.PARTS, "none", "a part that there is not")
    file = tmp_path / "found.json"
    given = ["none", "history", "--model", "tiny", "--rounds", "1", "--json", str(file)]
    done = CliRunner().invoke(app, ["bench", *given])
    assert done.exit_code == 1
    assert "| score_history_growth_exponent |" in done.output
    assert "bench: none failed" in done.output
    found = json.loads(file.read_text())
    assert "score_history_growth_exponent" in found and found["failed"] == ["none"]


def test_parts_are_chosen_and_their_ratios_written(tmp_path: Path, capfd: Any) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(
        app, ["bench", "history", "--model", "tiny", "--rounds", "1", "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    key = "score_history_growth_exponent"
    assert [name for name in found if isinstance(found[name], float)] == [key]  # no other was run
    assert found["spread"] == {key: [found[key]] * 2}
    assert found["machines"]["history"]["threads"] >= 1
    assert f"| {key} | {found[key]:.3g} |" in done.output
    assert "load average" in done.output and "random weights" in done.output
    assert "history T=12, round 1 of 1" in capfd.readouterr().err
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["scoring"], "unknown part 'scoring'"),
        (["score", "--json", "/nowhere/x.json"], "no folder /nowhere"),
        (["score", "--model", "/nowhere"], "no model folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", *given])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.services
def test_the_overhead_is_a_real_run_less_plain_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It fails where the two compute other numbers."""
    monkeypatch.chdir(tmp_path)  # where models/wiki-sft is not
    file = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["bench", "overhead", "--rounds", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert 0 < found["overhead_s_per_iteration"] < 60
    assert "overhead_frac_wiki" not in found
    laps = found["parts"]["overhead"]["laps"]
    assert [len(laps[name]) for name in ("overhead, real run", "overhead, plain calls")] == [4, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"]
