"""How many codec tokens the first audio needs. The schedulers of thinker and talker use this number too. Pure.

token2wav/windows.py explains windows and blocks.
"""

from __future__ import annotations

from typing import Final

LOOKAHEAD_CODES: Final = 8
"""Minimum number of codes that a window reads after its new blocks. It is rounded up to complete blocks."""
FIRST_BLOCKS: Final = 1
"""Number of new blocks in the first window."""


def lookahead_blocks(block_codes: int) -> int:
    """Returns the number of blocks that a window reads after its new blocks."""
    return -(-LOOKAHEAD_CODES // block_codes)


def first_codes(block_codes: int) -> int:
    """Returns how many codes the first window reads."""
    return (FIRST_BLOCKS + lookahead_blocks(block_codes)) * block_codes
