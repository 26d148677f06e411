"""How many codec tokens the first audio needs. The schedulers of thinker and talker use this number too. Pure.

token2wav/windows.py explains windows and blocks.
"""

from __future__ import annotations

from typing import Final

from omni_stage.models.qwen2_5_omni.checkpoint import Blocks

LOOKAHEAD_CODES: Final = 8
"""Minimum number of codes that a window reads after its new blocks. It is rounded up to complete blocks."""
FIRST_BLOCKS: Final = 1
"""Number of new blocks in the first window."""


def lookahead_blocks(blocks: Blocks) -> int:
    """Returns the number of blocks that a window reads after its new blocks."""
    return max(blocks.ahead, -(-LOOKAHEAD_CODES // blocks.codes))


def first_codes(blocks: Blocks) -> int:
    """Returns how many codes the first window reads."""
    return (FIRST_BLOCKS + lookahead_blocks(blocks)) * blocks.codes
