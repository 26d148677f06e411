"""The sizes of tiny checkpoints: selected by name, and checked for consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from omni_stage.errors import ConfigurationError

HEAD_DIM = 32
"""Smallest head size that vLLM's CPU attention kernels support."""
_BYTES = 256
"""Tokens of a byte-level vocabulary before any merge."""
_MINIMUM_MERGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySizes:
    """The sizes that every family's TinyShape has. All others follow from these or are fixed. All attention heads are
    32 wide."""

    vocab_size: int = 640
    """Rows of the thinker's embedding: bytes, merges and special tokens."""
    thinker_heads: int = 4
    """Query heads of the thinker; its hidden size is 32 times this."""
    thinker_kv_heads: int = 2
    """Key-value heads of the thinker; fewer than thinker_heads means grouped-query attention."""
    talker_hidden_size: int = 96
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_layers: int = 2
    max_position_embeddings: int = 8192
    """Longest sequence of thinker and talker."""


_Shape = TypeVar("_Shape", bound=TinySizes)


def find_shape(shape: str | _Shape, shapes: Mapping[str, _Shape]) -> _Shape:
    """Returns the shape of that name, or the shape itself. Raises ConfigurationError for an unknown name."""
    if not isinstance(shape, str):
        return shape
    if shape not in shapes:
        raise ConfigurationError(f"unknown shape {shape!r}; known: {', '.join(shapes)}", field="shape")
    return shapes[shape]


def special_ids(vocab_size: int, tokens: Sequence[str]) -> dict[str, int]:
    """Returns the ids of a family's special tokens: the last ids of the vocabulary, in the given order."""
    return {token: vocab_size - len(tokens) + index for index, token in enumerate(tokens)}


def check_shape(shape: TinySizes, special_tokens: int) -> None:
    """Refuse sizes that do not fit together. Raises ConfigurationError naming the field.

    `special_tokens`: number of special tokens in the family's vocabulary.
    """
    for heads, kv_heads, name in (
        (shape.thinker_heads, shape.thinker_kv_heads, "thinker"),
        (shape.talker_heads, shape.talker_kv_heads, "talker"),
    ):
        if kv_heads < 1 or heads % kv_heads:
            raise ConfigurationError(
                f"{name}_heads ({heads}) must be a multiple of {name}_kv_heads ({kv_heads})", field=f"{name}_kv_heads"
            )
    minimum = _BYTES + special_tokens + _MINIMUM_MERGES
    if shape.vocab_size < minimum:
        raise ConfigurationError(f"vocab_size must be at least {minimum}, got {shape.vocab_size}", field="vocab_size")
