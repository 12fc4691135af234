"""Addresses that hold no secret: settings are recorded, shown and sent; the environment is not."""

from __future__ import annotations

import re

# What stands before the @: as browsers read it, `http://host:80/a@b` holds no password; as
# SQLAlchemy does, `postgresql://me:80/a@b` holds one. Passwords may hold blanks, or quotes.
_USERINFO = re.compile(
    r"(?:(?<=http)|(?<=https)|(?P<other>(?<!http)(?<!https)))://(?P<user>[^:/?#@\s'\"]*):"
    r"(?(other)|(?!\d{1,5}/))(?:[^'\"\n@]*|[^\s@,{}\[\]]*)@(?:[^\s'\"]*@)?",
    re.IGNORECASE,
)
# Tokens of code hosts and hubs stand alone there, where names of people are short or have no digit.
_TOKEN = re.compile(r"(?i)(?P<scheme>https?://)(?=[^@/?#\s]*\d)[^:/?#@\s'\"]{16,}@")
_SECRETS = "passw(?:or)?d|pwd|token|secret|api[_-]?key"
_QUERY = re.compile(rf"(?i)(?P<key>[?&][\w.-]*(?:{_SECRETS})=)[^&\s'\"]*")

# For the form, which knows patterns (of JavaScript, too) and no code: the same three.
NO_PASSWORD = (
    r"^(?![^/]*://[^:/?#@]*:(?![0-9]{1,5}/)[^@]*@)"
    r"(?!(?![^/]*[hH][tT][tT][pP][sS]?://)[^/]*://[^:/?#@]*:[^@]*@)"
    r"(?![^/]*[hH][tT][tT][pP][sS]?://(?=[^@/?#]*[0-9])[^:/?#@]{16,}@)"
    r"(?!.*[?&][\w.-]*([pP][aA][sS][sS][wW]([oO][rR])?[dD]|[pP][wW][dD]|[tT][oO][kK][eE][nN]"
    r"|[sS][eE][cC][rR][eE][tT]|[aA][pP][iI][_-]?[kK][eE][yY])=)"
)


def holds_password(address: str) -> bool:
    """Whether an address holds scheme://user:password@, https://TOKEN@, or says ?password=."""
    return any(pattern.search(address) for pattern in (_USERINFO, _TOKEN, _QUERY))


def redacted(text: str) -> str:
    """The text with *** for the password of every address in it.

    >>> redacted("no answer from postgresql://me:secret@host/db")
    'no answer from postgresql://me:***@host/db'
    """
    shown = _TOKEN.sub(r"\g<scheme>***@", _USERINFO.sub(r"://\g<user>:***@", text))
    return _QUERY.sub(r"\g<key>***", shown)
