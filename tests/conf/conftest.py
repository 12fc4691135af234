"""Files of one's own, and how a loader refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.text import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """write(text): the path of mine.yaml, which holds that."""

    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """refused(load, ...): the one line that load(...) is refused with."""

    def refused(load: Callable[..., object], *args: object, **kwargs: object) -> str:
        with pytest.raises(ConfigError) as caught:
            load(*args, **kwargs)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused
