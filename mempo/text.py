"""When two answers are the same words."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and surplus whitespace.

    Source: the evaluation script of SQuAD (Rajpurkar et al., 2016). May be empty for a text that
    is not: "A" and "!" normalise to "".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
