"""The token that guards a Ray on this machine, in Ray's own place: ~/.ray/auth_token."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def ensure() -> Path:
    """Make the token where there is none; nobody else can read it."""
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        aside = path.with_name("auth_token.partial")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        aside.rename(path)
    path.chmod(0o600)  # Ray itself leaves it readable for all
    return path
