"""Writes a tiny Qwen2.5-Omni that vllm-omni accepts: `python -m benchmarks.peer.checkpoint DIRECTORY`.

vllm-omni's code contains the published checkpoint's ids of codec and speaker tokens, so this checkpoint uses them too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from omni_stage.models.qwen2_5_omni.tiny import TinyShape, write_tiny_checkpoint

CODEC_END: Final = 8294
"""The codec token that ends the audio. Padding is 8292, and the start token 8293."""
SHAPE: Final = TinyShape(vocab_size=151_875, audio_codes=CODEC_END - 3)
"""The codec's padding, start and end tokens follow its audio tokens. The voice Chelsie's token gets id 151872."""

if __name__ == "__main__":
    write_tiny_checkpoint(Path(sys.argv[1]), 0, SHAPE, dtype="float32")
