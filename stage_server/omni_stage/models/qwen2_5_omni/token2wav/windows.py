"""Codec tokens to audio in windows: which tokens a window reads, and which of them it turns into audio. Pure.

The diffusion transformer attends within blocks of tokens, and over its layers it sees two blocks before and one after
(Qwen2.5-Omni technical report, "block-wise" decoding). So a window of new blocks is computed together with
LOOKBACK_BLOCKS blocks before them and one block after them, and only the audio of the new blocks is returned:

    blocks    0   1   2   3   4   5   6   7   8
    window 0  new ahead
    window 1      (back) new new new ahead
    window 2          back back new new new ahead          (each: lookback, new, lookahead)

The first window is short, so that audio starts early; later ones are longer, so that fewer blocks are computed twice. A
window's content depends on the tokens alone, never on their arrival times: a seed gives the same audio each time. The
solver runs all its steps for one window, then for the next, so the blocks before a window are computed without all of
their own context: the audio differs slightly from that of all tokens at once. docs/streaming.md has the measurement.
The vocoder sees across blocks: where blocks are smaller than the published 12 codes, a window reads more of them after
the new ones, up to LOOKAHEAD_CODES.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_stage.models.qwen2_5_omni.first_window import FIRST_BLOCKS, lookahead_blocks

LOOKBACK_BLOCKS = 2
NEXT_BLOCKS = 3
"""New blocks of every later window."""
CODE_SAMPLES = 480
"""Samples of a codec token: two mel frames, 240 samples each (repeats of the transformer, rates of the vocoder)."""
FADE_SAMPLES = 240
"""One mel frame, 10 ms: the length of the cross-fade between the audio of two windows."""


@dataclass(frozen=True, slots=True)
class Window:
    """Codes [begin, end) are read; of them [first, until) become audio."""

    begin: int
    first: int
    until: int
    end: int
    last: bool

    @property
    def skip(self) -> int:
        """Codes read before the first that becomes audio."""
        return self.first - self.begin

    @property
    def keep(self) -> int:
        """Codes that become audio."""
        return self.until - self.first


def window_blocks(block_codes: int) -> tuple[int, ...]:
    """Returns the sizes of a long utterance's windows in blocks, ascending; only the last window may differ."""
    first = FIRST_BLOCKS + lookahead_blocks(block_codes)
    later = [
        min(LOOKBACK_BLOCKS, begin) + NEXT_BLOCKS + lookahead_blocks(block_codes)
        for begin in (FIRST_BLOCKS, FIRST_BLOCKS + NEXT_BLOCKS)
    ]
    return tuple(sorted({first, *later}))


def next_window(first: int, codes: int, *, ended: bool, block_codes: int) -> Window | None:
    """Returns the window whose audio starts at code `first`; None if more codes must arrive.

    `codes` is how many codes have arrived. `first` is 0 or the `until` of the window before; `block_codes` are the
    codes of a block. After the codes have ended there is always a window, until all codes have become audio. The same
    codes give the same windows however they are split on arrival.
    """
    begin = max(0, first - LOOKBACK_BLOCKS * block_codes)
    until = first + (FIRST_BLOCKS if first == 0 else NEXT_BLOCKS) * block_codes
    end = until + lookahead_blocks(block_codes) * block_codes
    if codes >= end:
        return Window(begin, first, until, end, last=False)
    if ended and codes > first:
        return Window(begin, first, codes, codes, last=True)
    return None
