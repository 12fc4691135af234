"""Addresses that hold no secret: settings are recorded, shown and sent; the environment is not."""

from __future__ import annotations

import re

# What stands before the @: as browsers read it, `http://host:80/a@b` holds no password; as
# SQLAlchemy does, `postgresql://me:80/a@b` holds one. Passwords may hold blanks.
_USERINFO = re.compile(
    r"(?:(?<=http)|(?<=https)|(?P<other>(?<!http)(?<!https)))://(?P<user>[^:/?#@\s'\"]*):"
    r"(?(other)|(?!\d{1,5}/))[^'\"\n@]*@(?:[^\s'\"]*@)?",
    re.IGNORECASE,
)
_QUERY = re.compile(r"(?i)(?P<key>[?&](?:password|passwd|pwd|token|secret)=)[^&\s'\"]*")

# For the form, which knows patterns (of JavaScript, too) and no code: no `user:password@`.
NO_PASSWORD = (
    r"^(?![^/]*://[^:/?#@]*:(?![0-9]{1,5}/)[^@]*@)"
    r"(?!(?![^/]*[hH][tT][tT][pP][sS]?://)[^/]*://[^:/?#@]*:[^@]*@)"
)


def holds_password(address: str) -> bool:
    """Whether an address has the form scheme://user:password@host or says ?password=."""
    return bool(_USERINFO.search(address) or _QUERY.search(address))


def redacted(text: str) -> str:
    """The text with *** for the password of every address in it.

    >>> redacted("no answer from postgresql://me:secret@host/db")
    'no answer from postgresql://me:***@host/db'
    """
    return _QUERY.sub(r"\g<key>***", _USERINFO.sub(r"://\g<user>:***@", text))


def without_password(address: str, setting: str, cure: str) -> str:
    """The address itself.

    Raises:
        ValueError: it holds a password; the message names the setting and not the address.
    """
    if holds_password(address):
        raise ValueError(
            f"{setting} holds a password, and settings are recorded and shown; write the address "
            f"without it and {cure}"
        )
    return address
