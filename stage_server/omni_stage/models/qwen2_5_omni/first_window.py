"""How many codec tokens the first audio needs. Thinker and talker are scheduled by it too. Pure."""

from __future__ import annotations

from typing import Final

LOOKAHEAD_CODES: Final = 8
"""Fewest codes that a window reads after its new blocks; a whole block if a block has more."""
FIRST_BLOCKS: Final = 1
"""New blocks of the first window."""


def lookahead_blocks(block_codes: int) -> int:
    """Returns the number of blocks that a window reads after its new ones."""
    return -(-LOOKAHEAD_CODES // block_codes)


def first_codes(block_codes: int) -> int:
    """Returns how many codes the first window reads."""
    return (FIRST_BLOCKS + lookahead_blocks(block_codes)) * block_codes
