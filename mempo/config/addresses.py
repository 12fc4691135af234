"""Addresses that hold no secret: settings are recorded, shown and sent; the environment is not."""

from __future__ import annotations

import re

# What stands before the @: as browsers read it, `http://host:80/a@b` holds no password; as
# SQLAlchemy does, `postgresql://me:80/a@b` holds one. Passwords may hold blanks, or quotes.
_USERINFO = re.compile(
    r"(?:(?<=http)|(?<=https)|(?P<other>(?<!http)(?<!https)))://(?P<user>[^:/?#@\s'\"]{0,256}):"
    r"(?(other)|(?!\d{1,5}/))(?:[^'\"\n@]{0,512}|[^\s@]{0,512})@(?:[^\s'\"]{0,512}@)?",
    re.IGNORECASE,
)
# Tokens of code hosts and hubs stand for the name there, where those of people are short or have
# no digit.
_TOKEN = re.compile(
    r"(?i)(?P<scheme>https?://)(?=[^@/?#\s]{0,512}\d)[^:/?#@\s'\"]{16,512}(?::[^@/\s'\"]{0,256})?@"
)
_SECRETS = "passw(?:or)?d|pwd|token|secret|api[_-]?key|auth|credential|sig(?:nature)?"
_QUERY = re.compile(rf"(?i)(?P<key>[?&][\w.-]{{0,64}}(?:{_SECRETS})=)[^&\s]*")

# For the form, which knows patterns (of JavaScript, too) and no code: the same three.
NO_PASSWORD = (
    r"^(?![^/]*://[^:/?#@]*:(?![0-9]{1,5}/)[^@]*@)"
    r"(?!(?![^/]*[hH][tT][tT][pP][sS]?://)[^/]*://[^:/?#@]*:[^@]*@)"
    r"(?![^/]*[hH][tT][tT][pP][sS]?://(?=[^@/?#]*[0-9])[^:/?#@]{16,}(:[^@/]*)?@)"
    r"(?!.*[?&][\w.-]*([pP][aA][sS][sS][wW]([oO][rR])?[dD]|[pP][wW][dD]|[tT][oO][kK][eE][nN]"
    r"|[sS][eE][cC][rR][eE][tT]|[aA][pP][iI][_-]?[kK][eE][yY]|[aA][uU][tT][hH]"
    r"|[cC][rR][eE][dD][eE][nN][tT][iI][aA][lL]|[sS][iI][gG]([nN][aA][tT][uU][rR][eE])?)=)"
)


def holds_password(address: str) -> bool:
    """Whether an address holds scheme://user:password@, https://TOKEN@, or says ?password=."""
    return any(pattern.search(address) for pattern in (_USERINFO, _TOKEN, _QUERY))


def redacted(text: str) -> str:
    """The text with *** for the password of every address in it.

    >>> redacted("no answer from postgresql://me:secret@host/db")
    'no answer from postgresql://me:***@host/db'
    """
    shown = _USERINFO.sub(r"://\g<user>:***@", _TOKEN.sub(r"\g<scheme>***@", text))
    return _QUERY.sub(r"\g<key>***", shown)
