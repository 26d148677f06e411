"""Windows of codec tokens: which tokens each window reads, and which of them it turns into audio. Pure.

The diffusion transformer attends within blocks of tokens. Over all its layers, a block also sees two blocks before and
one block after it (Qwen2.5-Omni technical report, "block-wise" decoding). So a window of new blocks is computed
together with the blocks before them that it sees and one block after them, and only the audio of the new blocks is
returned:

    block     0      1      2      3      4      5      6      7
    window 0  new    ahead
    window 1  back   new    new    new    ahead
    window 2                back   back   new    new    new    ahead

The first window is short, so that audio starts early. Later windows are longer, so that fewer blocks are computed
twice. If blocks have fewer than the published 12 codes, windows of three blocks would last only an instant, and most of
their cost would be the fixed cost of a window. So windows of such blocks grow: each later one yields as many blocks as
all windows before it, but at least three, and at most NEXT_CODES codes.

A window's content depends only on the tokens, not on their arrival times, so a seed gives the same audio each time.

The solver runs all its steps for one window before it begins the next. So within a window, the lookback blocks lack
part of their own context, and the audio differs slightly from one window with all tokens. docs/streaming.md has the
measurement.

The vocoder also sees across blocks. So if blocks have fewer than LOOKAHEAD_CODES codes, a window reads more than one
block after the new ones. The published models' blocks have 12 codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_stage.models.qwen2_5_omni.checkpoint import FIRST_BLOCKS, Blocks, lookahead_blocks

NEXT_BLOCKS = 3
"""Minimum number of new blocks in every later window except the last."""
NEXT_CODES = 36
"""Maximum number of new codes of a window that grows, in whole blocks: 0.72 s of audio. NEXT_BLOCKS of the published
blocks have as many, so windows of such blocks do not grow."""


@dataclass(frozen=True, slots=True)
class Window:
    """Codes [begin, end) are read; codes [first, until) among them become audio."""

    begin: int
    first: int
    until: int
    end: int
    last: bool

    @property
    def skip(self) -> int:
        """Number of codes that are read before the first code that becomes audio."""
        return self.first - self.begin

    @property
    def keep(self) -> int:
        """Number of codes that become audio."""
        return self.until - self.first


def window_blocks(blocks: Blocks) -> tuple[int, ...]:
    """Returns the sizes of a long utterance's windows in blocks, ascending. Only its last window may be shorter."""
    sizes: set[int] = set()
    done = 0
    while True:
        new = _new_blocks(done, blocks.codes)
        size = min(blocks.back, done) + new + lookahead_blocks(blocks)
        if size in sizes:  # sizes only grow, up to a size that repeats
            return tuple(sorted(sizes))
        sizes.add(size)
        done += new


def _new_blocks(done: int, block_codes: int) -> int:
    """Returns the number of new blocks in the window that follows `done` blocks."""
    if done == 0:
        return FIRST_BLOCKS
    maximum = max(NEXT_BLOCKS, -(-NEXT_CODES // block_codes))
    return min(max(NEXT_BLOCKS, done), maximum)


def next_window(first: int, codes: int, *, ended: bool, blocks: Blocks) -> Window | None:
    """Returns the window whose audio starts at code `first`; None if more codes must arrive.

    `codes` is how many codes have arrived, `first` is 0 or the previous window's `until`, and `blocks` are the
    transformer's. If `ended`, there is always a next window until all codes have become audio. The same
    codes give the same windows, however they are split on arrival.
    """
    begin = max(0, first - blocks.back * blocks.codes)
    until = first + _new_blocks(first // blocks.codes, blocks.codes) * blocks.codes
    end = until + lookahead_blocks(blocks) * blocks.codes
    if codes >= end:
        return Window(begin, first, until, end, last=False)
    if ended and codes > first:
        return Window(begin, first, codes, codes, last=True)
    return None
