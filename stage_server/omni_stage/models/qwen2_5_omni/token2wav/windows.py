"""Windows of codec tokens: which tokens each window reads, and which of them it turns into audio. Pure.

The diffusion transformer attends within blocks of tokens. Over all its layers, a block also sees two blocks before and
one block after it (Qwen2.5-Omni technical report, "block-wise" decoding). So a window of new blocks is computed
together with LOOKBACK_BLOCKS blocks before them and one block after them, and only the audio of the new blocks is
returned:

    block     0      1      2      3      4      5      6      7
    window 0  new    ahead
    window 1  back   new    new    new    ahead
    window 2                back   back   new    new    new    ahead

The first window is short, so that audio starts early. Later windows are longer, so that fewer blocks are computed
twice. A window's content depends only on the tokens, not on their arrival times, so a seed gives the same audio each
time.

The solver runs all its steps for one window before it begins the next. So within a window, the lookback blocks lack
part of their own context, and the audio differs slightly from one window with all tokens. docs/streaming.md has the
measurement.

The vocoder also sees across blocks. So if blocks have fewer than LOOKAHEAD_CODES codes, a window reads more than one
block after the new ones. The published models' blocks have 12 codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_stage.models.qwen2_5_omni.first_window import FIRST_BLOCKS, lookahead_blocks

LOOKBACK_BLOCKS = 2
NEXT_BLOCKS = 3
"""Number of new blocks in every later window except the last."""
CODE_SAMPLES = 480
"""Audio samples per codec token: two mel frames (the transformer's `repeats`) of 240 samples (the vocoder's rates)."""
FADE_SAMPLES = 240
"""One mel frame, 10 ms: the length of the cross-fade between the audio of two windows."""


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


def window_blocks(block_codes: int) -> tuple[int, ...]:
    """Returns the sizes of a long utterance's windows in blocks, ascending. Only its last window may be shorter."""
    first = FIRST_BLOCKS + lookahead_blocks(block_codes)
    later = [
        min(LOOKBACK_BLOCKS, begin) + NEXT_BLOCKS + lookahead_blocks(block_codes)
        for begin in (FIRST_BLOCKS, FIRST_BLOCKS + NEXT_BLOCKS)
    ]
    return tuple(sorted({first, *later}))


def next_window(first: int, codes: int, *, ended: bool, block_codes: int) -> Window | None:
    """Returns the window whose audio starts at code `first`; None if more codes must arrive.

    `codes` is how many codes have arrived, `first` is 0 or the previous window's `until`, and `block_codes` is the
    number of codes per block. If `ended`, there is always a next window until all codes have become audio. The same
    codes give the same windows, however they are split on arrival.
    """
    begin = max(0, first - LOOKBACK_BLOCKS * block_codes)
    until = first + (FIRST_BLOCKS if first == 0 else NEXT_BLOCKS) * block_codes
    end = until + lookahead_blocks(block_codes) * block_codes
    if codes >= end:
        return Window(begin, first, until, end, last=False)
    if ended and codes > first:
        return Window(begin, first, codes, codes, last=True)
    return None
