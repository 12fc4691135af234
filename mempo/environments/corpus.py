"""Passages in files: a JSON line a passage, contents in the layout of Search-R1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mempo.types import Passage


def parse_contents(contents: str) -> tuple[str, str]:
    r"""(title, text) of the Search-R1 layout `"Title"\ntext`.

    The quotes around the title may be missing; contents of a single line have no title.
    """
    first, newline, rest = contents.strip().partition("\n")
    if not newline:
        return "", first
    title = first.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1].strip()
    return title, rest.strip()


def read_corpus(path: Path) -> list[Passage]:
    """All passages of a .jsonl file in the Search-R1 layout {"id", "contents"}.

    Raises:
        ValueError: file missing, unreadable or empty, or a line of another layout, or an id that
            occurs twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a corpus ({error})") from error
    passages: dict[str, Passage] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            passage = to_passage(row)
            identity = str(row["id"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{path}, line {number}: not {{"id": ..., "contents": "\\"Title\\"\\ntext"}}; '
                "write the corpus in the Search-R1 layout"
            ) from error
        if identity in passages:
            raise ValueError(f"{path}, line {number}: id {identity!r} occurs twice; make it unique")
        passages[identity] = passage
    if not passages:
        raise ValueError(f"{path}: the corpus is empty; give a file with passages")
    return list(passages.values())


def to_passage(item: Mapping[str, Any]) -> Passage:
    """A passage from a search result or a corpus line; `id` and `score` may be missing."""
    document = item.get("document", item)
    contents = document["contents"]
    title, text = parse_contents(contents)
    identity = document.get("id")
    if identity is None:  # web results have none: the same text always gets the same name
        identity = blake2b(contents.encode(), digest_size=8).hexdigest()
    return Passage(id=str(identity), title=title, text=text)
