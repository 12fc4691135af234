"""Text to token ids and back, with the characters that each token covers.

Training uses the ids that were sampled and never encodes decoded text again. What the parser
needs is the other direction: the exact text of given ids and, for each token, its characters.
`tokenizer.decode` cannot say that (it strips, cleans up, and merges bytes), so the pieces are
taken from the vocabulary itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

_CLOSING = re.compile(r"</[a-z_]+>")


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """Inverse of the byte-to-character table of byte-level BPE (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    table.update({chr(256 + i): b for i, b in enumerate(others)})
    return table


@dataclass(frozen=True)
class Codec:
    """A fast transformers tokenizer, and the exact text of every token."""

    tokenizer: Any

    @property
    def eos_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        """Any id serves as padding: what is padding is decided by length, never by id."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else int(pad)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone: no start token, no end token."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def shorten(self, text: str, tokens: int) -> str:
        """The first `tokens` tokens of `text`."""
        ids = self.encode(text)
        return text if len(ids) <= tokens else self.text(ids[:tokens]).rstrip("\ufffd ")

    @cached_property
    def _pieces(self) -> list[bytes]:
        """[V] the bytes of each token."""
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        kind = json.dumps(state.get("decoder") or {})
        added = {int(t["id"]): t["content"] for t in state.get("added_tokens", [])}
        vocabulary = self.tokenizer.get_vocab()
        pieces = [b""] * (max(vocabulary.values()) + 1)  # ids without a token have no bytes
        for token, i in vocabulary.items():
            if "ByteLevel" in kind:
                if i in added:
                    pieces[i] = added[i].encode()
                else:
                    pieces[i] = bytes(_byte_of_char()[c] for c in token)
            elif state["model"]["type"] == "WordLevel":
                # A blank before </mem> would lie inside, and make the tag a token of the memory.
                pieces[i] = (b"" if _CLOSING.fullmatch(token) else b" ") + token.encode()
            elif token.startswith("<0x") and len(token) == 6 and token.endswith(">"):
                pieces[i] = bytes([int(token[3:5], 16)])
            else:
                pieces[i] = token.replace("\u2581", " ").encode()
        return pieces

    def text(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, special tokens included; broken characters are U+FFFD."""
        return b"".join(self._bytes(ids)).decode("utf-8", "replace")

    def text_and_offsets(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of `ids` and for each token the [start, end) of its characters.

        A character made of several tokens belongs to each of them, so no token is without
        characters unless its bytes are empty.
        """
        pieces = self._bytes(ids)
        data = b"".join(pieces)
        text = data.decode("utf-8", "replace")
        # [bytes + 1] the character that each byte belongs to.
        at = range(len(data) + 1) if len(text) == len(data) else _character_of_byte(data)
        offsets, end = [], 0
        for piece in pieces:
            start, end = end, end + len(piece)
            offsets.append((at[start], at[end - 1] + 1 if piece else at[start]))
        return text, offsets

    def _bytes(self, ids: Sequence[int]) -> list[bytes]:
        pieces = self._pieces
        return [pieces[i] if i < len(pieces) else b"" for i in ids]


def _character_of_byte(data: bytes) -> list[int]:
    """For each byte, and for the end, the index of its character in the decoded text."""
    owner: list[int] = []
    count = at = 0
    while at < len(data):
        try:
            good, bad = data[at:].decode(), 0
        except UnicodeDecodeError as error:  # these bytes together become one U+FFFD
            good, bad = data[at : at + error.start].decode(), error.end - error.start
        for character in good:
            owner += [count] * len(character.encode())
            count += 1
        if bad:
            owner += [count] * bad
            count += 1
        at = len(owner)
    return [*owner, count]
