"""Packs utterances of any lengths into blocks, so that one forward computes all of them.

The diffusion transformer attends within blocks of frames; a few layers also see the previous or the following block.
So attention needs only a block and its neighbours, and utterances are packed block after block:

    blocks    0  1  2 | 3  4 | 5 ...        utterance 0: three blocks, utterance 1: two, ...
    previous  0  0  1 | 3  3 | 5            index of the block before; at an utterance's start the block itself
    bias      0 for frames that may be seen, -inf for padding and for neighbours that do not exist

If a neighbour does not exist, the block's own index takes its place. So an utterance never reads a value of another
utterance, not even a masked value, and a NaN stays within its utterance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BlockPack:
    """The positions of utterances' frames in B blocks of S frames. Tensors are on the CPU."""

    block_frames: int
    """S."""
    frames: tuple[int, ...]
    """Frames of each utterance."""
    positions: torch.Tensor
    """int64 [B, S]: index of a frame in its utterance."""
    previous: torch.Tensor
    """int64 [B]: index of the previous block of the same utterance; of the block itself if there is none."""
    following: torch.Tensor
    """int64 [B]: index of the next block of the same utterance; of the block itself if there is none."""
    bias: torch.Tensor
    """float32 [B, 3 x S]: 0 or -inf for each frame of the block before, of the block, and of the block after."""

    @property
    def counts(self) -> list[int]:
        """Number of blocks of each utterance."""
        return [count_blocks(frames, self.block_frames) for frames in self.frames]

    def fill(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns [B, S, C] on the rows' device from one [frames, C] per utterance. Padding is 0."""
        size, blocks = self.block_frames, self.positions.shape[0]
        parts = [
            functional.pad(row, (0, 0, 0, count * size - row.shape[0]))
            for row, count in zip(rows, self.counts, strict=True)
        ]
        missing = blocks - sum(self.counts)
        if missing:
            parts.append(parts[0].new_zeros(missing * size, parts[0].shape[1]))
        return torch.cat(parts).reshape(blocks, size, -1)

    def split(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Returns a view [frames, C] of [B, S, C] for each utterance."""
        starts = itertools.accumulate(self.counts[:-1], initial=0)
        return [
            packed[start : start + count].flatten(0, 1)[:frames]
            for start, count, frames in zip(starts, self.counts, self.frames, strict=True)
        ]


def count_blocks(frames: int, block_frames: int) -> int:
    """Returns the number of blocks that this many frames need."""
    return -(-frames // block_frames)


def pack_blocks(frames: Sequence[int], block_frames: int, blocks: int | None = None) -> BlockPack:
    """Returns the pack of utterances with these numbers of frames, each at least 1.

    `blocks`: total number of blocks; those that no utterance needs are padding that is never read.
    """
    counts = [count_blocks(count, block_frames) for count in frames]
    total = blocks or sum(counts)
    unread = total - sum(counts)
    last_filled = [length - (count - 1) * block_frames for length, count in zip(frames, counts, strict=True)]
    index = torch.arange(total)
    # Index of a block in its utterance. A padding block counts as an utterance by itself.
    place = torch.cat([torch.arange(count) for count in [*counts, *[1] * unread]])
    is_first = place == 0
    is_last = torch.cat([is_first[1:], torch.ones(1, dtype=torch.bool)])
    inside = torch.arange(block_frames)
    filled = torch.full((total,), block_frames)
    filled[is_last] = torch.tensor([*last_filled, *[block_frames] * unread])
    own = inside < filled[:, None]
    previous, following = index - (~is_first).long(), index + (~is_last).long()
    seen = torch.cat([own[previous] & ~is_first[:, None], own, own[following] & ~is_last[:, None]], dim=1)
    return BlockPack(
        block_frames=block_frames,
        frames=tuple(frames),
        positions=place[:, None] * block_frames + inside,
        previous=previous,
        following=following,
        bias=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf),
    )
