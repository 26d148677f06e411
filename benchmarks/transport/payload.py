"""The data that every side sends: rows of bfloat16 as wide as Qwen2.5-Omni-7B's hidden states, and their checksum."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np

from omni_proto.tensors import TensorSchema, TensorSpec

ROW_ELEMENTS = 3584
ROW_BYTES = 2 * ROW_ELEMENTS
CHUNK_ROWS = 1024 * 1024 // ROW_BYTES
"""Rows per chunk of about 1 MiB, for sides that cut tensors into chunks. These sides are fastest at about this size."""
SPEC = TensorSpec("x", "bfloat16", (ROW_ELEMENTS,))
SCHEMA = TensorSchema("bench/rows", 1, (SPEC,))


@dataclass(frozen=True, slots=True)
class Size:
    """A tensor to move, and how often a round moves it."""

    name: str
    rows: int
    transfers: int

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return self.rows * ROW_BYTES


SIZES = (
    Size("7 KB", 1, 300),
    Size("1 MB", 1_000_000 // ROW_BYTES, 30),
    Size("8 MB", 8_000_000 // ROW_BYTES, 8),
    Size("32 MB", 32_000_000 // ROW_BYTES, 4),
)
BULK = SIZES[-1]


def make_rows(rows: int) -> np.ndarray:
    """Returns uint16 [rows, ROW_ELEMENTS]: the bits of finite bfloat16 numbers, the same on every machine."""
    numbers = np.random.default_rng(0).standard_normal((rows, ROW_ELEMENTS), dtype=np.float32)
    return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def checksum(data: np.ndarray) -> int:
    """Returns the CRC-32C of uint8 [n], computed by the processor's instruction."""
    return int(google_crc32c.value(data))


def verify(data: np.ndarray, expected: int) -> None:
    """Raises ValueError if the data do not have the expected checksum."""
    if checksum(data) != expected:
        raise ValueError("a checksum is wrong")
