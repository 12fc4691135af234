"""Which variables of the environment are secrets, and so go to no place that writes them down.

Ray logs the environment that a driver gives its workers. Workers of a local Ray inherit this
process's own in any case; the nodes of another Ray get secrets where that Ray is started.
"""

from __future__ import annotations

import re

from mempo.config.addresses import holds_password

_NAMES = re.compile(r"PASSW|PASSPHRASE|PWD|TOKEN|AUTH|SECRET|KEY|CREDENTIAL|HEADERS|DATABASE|_DSN")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable may hold a secret: by its name, or as an address with a password."""
    return bool(_NAMES.search(name.upper())) or holds_password(value)
