"""A prefix cache in virtual time: which blocks of earlier prompts an engine need not compute again. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import numpy as np

BLOCK_TOKENS: Final = 16
"""Tokens of a KV block: vLLM's default."""


def name_blocks(token_ids: Sequence[int], salt: str) -> list[bytes]:
    """Returns a name for each full block of a prompt, which covers the salt and all tokens up to the block's end."""
    ids, last, names = np.asarray(token_ids, np.int64), sha256(salt.encode()).digest(), []
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = sha256(last + ids[start : start + BLOCK_TOKENS].tobytes()).digest()
        names.append(last)
    return names


class PrefixCache:
    """The blocks of prompts that are in the KV cache: those that requests hold, and those that earlier ones left."""

    def __init__(self) -> None:
        self._held: Counter[bytes] = Counter()
        self._left: OrderedDict[bytes, None] = OrderedDict()

    def count(self, names: Sequence[bytes]) -> int:
        """Returns how many blocks, from the first on, are in the cache."""
        return next((at for at, name in enumerate(names) if not (name in self._held or name in self._left)), len(names))

    def hold(self, names: Sequence[bytes]) -> None:
        """Keep blocks that a request reuses or has computed, until it releases them."""
        for name in names:
            self._left.pop(name, None)
            self._held[name] += 1

    def release(self, names: Sequence[bytes]) -> None:
        """Give up a request's blocks. They stay as long as there is room; a prompt's last ones go first."""
        for name in reversed(names):
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self._left[name] = None

    def trim(self, blocks: int) -> None:
        """Drop the blocks that no request holds and that were used longest ago, until at most `blocks` remain."""
        while len(self._left) > blocks:
            self._left.popitem(last=False)
