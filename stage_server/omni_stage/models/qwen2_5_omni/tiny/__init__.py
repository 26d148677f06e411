"""A complete Qwen2.5-Omni checkpoint with seeded random weights, small enough for a laptop, written in seconds.

It has the layout of the published checkpoint, so code that loads one also loads the other. The layout: config,
safetensors with the prefixes thinker., talker. and token2wav., tokenizer with the model's special tokens and chat
template, processor files, speakers. The model produces gibberish: text of random words, audio in no language.
"""

from omni_stage.models.qwen2_5_omni.tiny.checkpoint import write_tiny_checkpoint
from omni_stage.models.qwen2_5_omni.tiny.shapes import SHAPES, TinyShape

__all__ = ["SHAPES", "TinyShape", "write_tiny_checkpoint"]
