"""The token that guards a Ray on this machine, in Ray's own place: ~/.ray/auth_token."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path


def ensure() -> Path:
    """Make the token where there is none; nobody else can read it."""
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        descriptor, aside = tempfile.mkstemp(dir=path.parent)  # its owner's alone
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # who comes second takes the first one's
            os.link(aside, path)
        os.unlink(aside)
    path.chmod(0o600)  # Ray itself leaves it readable for all
    return path
