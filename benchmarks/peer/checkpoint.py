"""A tiny Qwen2.5-Omni that vllm-omni takes: `python -m benchmarks.peer.checkpoint DIRECTORY`.

vllm-omni has the published checkpoint's ids of codec and speaker tokens in its code, so this one has them too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from omni_stage.models.qwen2_5_omni.tiny import TinyShape, write_tiny_checkpoint

CODEC_END: Final = 8294
"""The codec's token that ends the audio; padding is 8292, and the start 8293."""
SHAPE: Final = TinyShape(vocab_size=151_875, sound_codes=CODEC_END - 3)
"""Padding, start and end of the codec follow its audio tokens; the token of the voice Chelsie gets id 151872."""

if __name__ == "__main__":
    write_tiny_checkpoint(Path(sys.argv[1]), 0, SHAPE, dtype="float32")
