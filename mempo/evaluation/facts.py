"""Which facts a text states."""

from __future__ import annotations

import re
from collections.abc import Sequence


def stated(text: str, facts: Sequence[str]) -> set[str]:
    """The facts that a text states word for word, whatever the white space.

    'job ann three' is not stated by 'job ann threefold'; 'a b' is by 'a  b;'.
    """
    said = _words(text)
    return {fact for fact in facts if _words(fact) in said}


def _words(text: str) -> str:
    """Words and marks with a blank around each: 'a b; c' -> ' a b ; c '."""
    return " ".join(["", *re.findall(r"\w+|[^\w\s]", text), ""])
