"""A complete Qwen3-Omni checkpoint with seeded random weights, small enough for a laptop, written in seconds.

It has the layout of the published checkpoint: config.json in the published format, one tensor for each expert,
vocab.json and merges.txt without tokenizer.json. The model produces gibberish: text of random words, audio in no
language.
"""

from omni_stage.models.qwen3_omni.tiny.checkpoint import write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import SHAPES, TinyShape

__all__ = ["SHAPES", "TinyShape", "write_tiny_checkpoint"]
