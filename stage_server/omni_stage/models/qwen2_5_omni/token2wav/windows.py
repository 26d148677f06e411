"""Codec tokens to sound in windows: which tokens a window hears, and which of them it sounds. Pure.

The diffusion transformer attends within blocks of tokens, and over its layers it sees two blocks back and one ahead
(Qwen2.5-Omni technical report, "block-wise" decoding). So a window of new blocks is computed together with
LOOKBACK_BLOCKS before and LOOKAHEAD_BLOCKS behind it, and only the new ones are sounded:

    blocks    0   1   2   3   4   5   6   7   8
    window 0  new ahead
    window 1      (back) new new new ahead
    window 2          back back new new new ahead          (each: lookback, new, lookahead)

The first window is short, for an early first sound; later ones are longer, for less work done twice. What a window
holds depends on the tokens alone, never on when they came: a seed gives the same sound each time. The solver goes
through its steps window by window, so a window's context was not computed from its own context: the sound differs a
little from that of all tokens at once. docs/streaming.md has the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKBACK_BLOCKS = 2
LOOKAHEAD_BLOCKS = 1
FIRST_BLOCKS = 1
"""New blocks of the first window."""
NEXT_BLOCKS = 3
"""New blocks of every later window."""
CODE_SAMPLES = 480
"""Samples of a codec token: two mel frames, 240 samples each (repeats of the transformer, rates of the vocoder)."""
FADE_SAMPLES = 240
"""One mel frame, 10 ms: over this a window's sound goes over into the next one's."""


@dataclass(frozen=True, slots=True)
class Window:
    """Codes [begin, end) are heard; of them [first, until) are sounded."""

    begin: int
    first: int
    until: int
    end: int
    last: bool

    @property
    def skip(self) -> int:
        """Codes heard before the first that is sounded."""
        return self.first - self.begin

    @property
    def keep(self) -> int:
        """Codes sounded."""
        return self.until - self.first


def window_blocks() -> tuple[int, ...]:
    """Blocks of the windows of a long utterance, ascending: all but the last window have one of these sizes."""
    first = FIRST_BLOCKS + LOOKAHEAD_BLOCKS
    later = [
        min(LOOKBACK_BLOCKS, begin) + NEXT_BLOCKS + LOOKAHEAD_BLOCKS
        for begin in (FIRST_BLOCKS, FIRST_BLOCKS + NEXT_BLOCKS)
    ]
    return tuple(sorted({first, *later}))


def next_window(first: int, codes: int, *, ended: bool, block_codes: int) -> Window | None:
    """The window that sounds from code `first` on, where `codes` are there; None if more must come.

    `first` is 0 or the `until` of the window before; `block_codes` are the codes of a block. Once the codes have
    ended there is always a window, unless all are sounded. The same codes give the same windows however they come.
    """
    begin = max(0, first - LOOKBACK_BLOCKS * block_codes)
    until = first + (FIRST_BLOCKS if first == 0 else NEXT_BLOCKS) * block_codes
    end = until + LOOKAHEAD_BLOCKS * block_codes
    if codes >= end:
        return Window(begin, first, until, end, last=False)
    if ended and codes > first:
        return Window(begin, first, codes, codes, last=True)
    return None
