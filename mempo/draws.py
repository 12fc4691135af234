"""Random draws as a function of what they are for, so that order and batching change nothing."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

Key = str | int


def generator(*key: Key) -> np.random.Generator:
    """A generator that depends on `key` alone, e.g. (seed, "sample", iteration, question, 3)."""
    digest = blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
