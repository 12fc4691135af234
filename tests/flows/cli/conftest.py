"""`mempo` in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows import shell
from flows.cli import app


@pytest.fixture(autouse=True)
def _own_home(own_environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMPO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv(shell.DEBUG, raising=False)


@pytest.fixture(scope="session")
def mempo() -> Callable[..., Result]:
    """mempo("train", "--seed", "1"): what came of the command."""
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture(scope="session")
def refused(mempo: Callable[..., Result]) -> Callable[..., str]:
    """refused("train", ...): the one line on stderr of a command that is refused with status 2."""

    def refused(*arguments: str) -> str:
        result = mempo(*arguments)
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert line.startswith("mempo: ")
        return line

    return refused
