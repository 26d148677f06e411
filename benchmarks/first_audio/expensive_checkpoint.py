"""Writes a Qwen2.5-Omni whose tokens cost tens of milliseconds on a CPU into a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from omni_stage.models.qwen2_5_omni.tiny import TinyShape, write_tiny_checkpoint

SHAPE: Final = TinyShape(
    thinker_heads=32,
    thinker_kv_heads=8,
    thinker_layers=14,
    talker_hidden_size=1024,
    talker_heads=32,
    talker_kv_heads=8,
    talker_layers=14,
)
"""Thinker and talker have a hidden size of 1,024 and 14 layers, so that the engines do more work than the servers.
A token takes 28 KiB of KV cache in float32."""

if __name__ == "__main__":
    write_tiny_checkpoint(Path(sys.argv[1]), 0, SHAPE, dtype="float32")
