"""Text to token ids and back, with the characters that each token covers.

Training uses the ids that were sampled and never encodes decoded text again. What the parser
needs is the other direction: the exact text of given ids and, for each token, its characters.
`tokenizer.decode` cannot say that (it strips, cleans up, and merges bytes), so the pieces are
taken from the vocabulary itself.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

_REPLACED = "\ufffd".encode()


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
                pieces[i] = b" " + token.encode()
            elif token.startswith("<0x") and len(token) == 6 and token.endswith(">"):
                pieces[i] = bytes([int(token[3:5], 16)])
            else:
                pieces[i] = token.replace("\u2581", " ").encode()
        return pieces

    def text(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, special tokens included."""
        return self.text_and_offsets(ids)[0]

    def text_and_offsets(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of `ids` and for each token the [start, end) of its characters.

        A character made of several tokens belongs to each of them, so no token is without
        characters unless its bytes are empty.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces, parts, offsets, position = self._pieces, [], [], 0
        pending: list[int] = []  # tokens whose character is not complete yet
        for index, token in enumerate(ids):
            piece = pieces[token] if token < len(pieces) else b""
            held = decoder.getstate()[0]
            part = decoder.decode(piece)
            carries = bool(decoder.getstate()[0])  # bytes of a character still to come
            start, position = position, position + len(part)
            for earlier in pending if part else ():
                offsets[earlier] = (offsets[earlier][0], start + 1)
            if part:
                pending = []
            if held and part.startswith("\ufffd") and not (held + piece).startswith(_REPLACED):
                start += 1  # the held bytes stayed broken: their mark is none of this token's
            offsets.append((start, position + 1 if carries else position))
            if carries:
                pending.append(index)
            parts.append(part)
        parts.append(decoder.decode(b"", final=True))
        return "".join(parts), offsets
