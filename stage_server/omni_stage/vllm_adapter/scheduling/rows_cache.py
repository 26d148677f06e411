"""Published rows of KV blocks, kept on the host, so that a stage whose rows another stage reads can reuse a prefix.

vLLM skips the positions of a cached prefix, so their rows are not computed. Here, the rows of each full block are kept
under the block's hash, which covers all tokens up to the block's end, the content of media among them, and the
request's cache salt. A request that reuses blocks takes their rows from the cache.

All of this is pure: cached_prefixes.py connects it to vLLM's scheduler.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

BlockRows = Mapping[str, torch.Tensor]
"""The rows that a block's positions published, by tensor name, in the order of the positions. A model may publish only
some positions, so there may be fewer rows than positions, or none."""

_ENTRY_BYTES: Final = 1024
"""Counted for each block in addition to its rows: an upper bound of Python's objects for an entry."""


def row_bytes(rows: BlockRows) -> int:
    """Returns the size of a block's rows in bytes."""
    return sum(tensor.nbytes for tensor in rows.values())


class RowsCache:
    """Rows by block hash, at most `capacity` bytes and `max_blocks` blocks. The least recently used go first.

    For use by one thread.

    Blocks form chains: a block is of use only with all blocks before it. So of one chain, later blocks go first, as in
    vLLM's KV cache. Rows of a block that has left that cache are of no use: `max_blocks` is how many fit in it.
    """

    def __init__(self, capacity: int, max_blocks: int) -> None:
        self.capacity = capacity
        self.max_blocks = max_blocks
        self.held = 0
        """Bytes that are in use."""
        self._blocks: OrderedDict[bytes, BlockRows] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def count(self, chain: Sequence[bytes]) -> int:
        """Returns the length of the longest prefix of the chain whose rows are all held."""
        for index, name in enumerate(chain):
            if name not in self._blocks:
                return index
        return len(chain)

    def take(self, chain: Sequence[bytes]) -> list[BlockRows]:
        """Returns the rows of all blocks of the chain, and marks them as used. Raises KeyError if one is missing.

        The tensors stay valid after their blocks are dropped here. Callers must not change them.
        """
        taken = [self._blocks[name] for name in chain]
        self.touch(chain)
        return taken

    def touch(self, chain: Sequence[bytes]) -> None:
        """Mark the blocks of the chain that are held as used just now."""
        for name in reversed(chain):
            if name in self._blocks:
                self._blocks.move_to_end(name)

    def put(self, chain: Sequence[bytes], rows: Sequence[BlockRows]) -> None:
        """Keep the rows of the last `len(rows)` blocks of the chain, which must own their memory.

        Blocks that are held already stay as they are. Nothing is kept after a block that is missing.
        """
        first = len(chain) - len(rows)
        if first and chain[first - 1] not in self._blocks:
            return
        for name, block in zip(chain[first:], rows, strict=True):
            if name not in self._blocks:
                self._blocks[name] = block
                self.held += row_bytes(block) + _ENTRY_BYTES
        self.touch(chain)
        while self.held > self.capacity or len(self._blocks) > self.max_blocks:
            _, dropped = self._blocks.popitem(last=False)
            self.held -= row_bytes(dropped) + _ENTRY_BYTES

    def clear(self) -> None:
        """Drop everything."""
        self._blocks.clear()
        self.held = 0


@dataclass(slots=True)
class RowsOfRequest:
    """One request's published rows, on their way from the worker: filled up from the cache, and cut into blocks."""

    block_tokens: int
    computed: int
    """Number of positions, from the first on, that are in the cache or were computed, and whose rows have arrived. At
    first, the length of the prefix that the request reuses."""
    reused: list[BlockRows] = field(default_factory=list)
    """Rows of that prefix, until they are sent."""
    selects: bool = False
    """Whether the model publishes only some positions."""
    _block: list[BlockRows] = field(default_factory=list)
    """Rows of the block that is not complete yet."""

    def fill(self, rows: BlockRows) -> dict[str, list[torch.Tensor]]:
        """Returns the rows of the reused prefix and then the first rows from the worker, in parts. Forgets the
        former."""
        filled = _by_name([*self.reused, rows])
        self.reused = []
        return filled

    def add(self, rows: BlockRows, positions: torch.Tensor | None, end: int) -> list[BlockRows]:
        """Take the rows [n, ...] of the positions from `computed` up to `end`. Returns the blocks completed by them.

        `positions`: [n], ascending, the positions that were published; None if all were. What is returned owns its
        memory. Raises ValueError if there are not as many rows as positions.
        """
        if end <= self.computed:
            return []
        expected = end - self.computed if positions is None else int(positions.shape[0])
        if any(tensor.shape[0] != expected for tensor in rows.values()) or (positions is None and not rows):
            raise ValueError(f"the worker did not send one row for each of {expected} positions")
        complete: list[BlockRows] = []
        is_view = False
        while self.computed < end:
            until = min(end, self.computed - self.computed % self.block_tokens + self.block_tokens)
            if positions is None:
                first, last = expected - (end - self.computed), expected - (end - until)
            elif not expected:
                # Most steps of a model that publishes only positions of the prompt: save the calls into torch.
                first = last = 0
            else:
                first, last = torch.searchsorted(positions, torch.tensor([self.computed, until])).tolist()
            if last > first:
                self._block.append({name: tensor[first:last] for name, tensor in rows.items()})
                is_view = last - first < expected
            self.computed = until
            if until % self.block_tokens == 0:
                complete.append(join_rows(self._block))
                self._block, is_view = [], False
        if is_view:
            # A view would keep all of the worker's rows alive.
            self._block[-1] = join_rows(self._block[-1:])
        return complete


def join_rows(parts: Sequence[BlockRows]) -> dict[str, torch.Tensor]:
    """Returns the rows of all parts, one part after the other, as copies. A part may have no rows, and no names."""
    return {name: torch.cat(rows) for name, rows in _by_name(parts).items()}


def _by_name(parts: Sequence[BlockRows]) -> dict[str, list[torch.Tensor]]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [part[name] for part in parts if name in part] for name in names}
