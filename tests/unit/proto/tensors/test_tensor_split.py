"""A tensor is split into chunks of whole rows, each with its row offset and checksum. What does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from omni_proto.errors import EncodeError
from omni_proto.tensors import (
    DTYPES,
    MAX_MESSAGE_BYTES,
    TensorChunkView,
    TensorSpec,
    crc32c,
    decode_generate_request,
    encode_rows,
    encode_tensor_chunk,
)
from support.stages.chunk_messages import as_view, fields


@pytest.mark.parametrize(
    ("offset", "rows", "crc", "size"),
    [(-1, 0, 0, 0), (2**64, 0, 0, 0), (0, 2**32, 0, 0), (0, -1, 0, 0), (0, 0, 2**32, 0), (0, 1, 0, MAX_MESSAGE_BYTES)],
)
def test_what_does_not_fit_is_not_sent(offset: int, rows: int, crc: int, size: int) -> None:
    with pytest.raises(EncodeError):
        encode_tensor_chunk("x", offset, rows, crc, False, bytes(size))


def test_rows_are_split_whole_and_numbered() -> None:
    spec = TensorSpec("x", "int16", (3,))
    data = np.arange(30, dtype=np.int16).reshape(10, 3)
    chunks = [decode_generate_request(m) for m in encode_rows(spec, data, first_row=100, chunk_bytes=20)]
    assert all(isinstance(chunk, TensorChunkView) for chunk in chunks)
    views = [chunk for chunk in chunks if isinstance(chunk, TensorChunkView)]
    assert [(v.row_offset, v.rows, v.last) for v in views] == [
        (100, 3, False),
        (103, 3, False),
        (106, 3, False),
        (109, 1, True),
    ]
    assert b"".join(v.data for v in views) == data.tobytes()
    assert all(v.crc32c == crc32c(bytes(v.data)) for v in views)


def test_a_row_above_the_chunk_size_goes_alone() -> None:
    """A row that is larger than the chunk size gets a chunk of its own."""
    spec = TensorSpec("x", "uint8", (100,))
    chunks = list(encode_rows(spec, bytes(300), chunk_bytes=10))
    assert len(chunks) == 3


def test_no_rows_end_a_tensor_or_say_nothing() -> None:
    """Zero rows become an empty last chunk, or no chunk if more rows may follow."""
    spec = TensorSpec("x", "int16", (3,))
    assert decode_generate_request(next(encode_rows(spec, b"", first_row=4))) == as_view(
        fields("x", 4, 0, 0, True, b"")
    )
    assert list(encode_rows(spec, np.zeros((0, 3), np.int16), last=False)) == []


def test_only_contiguous_whole_rows_are_taken() -> None:
    spec = TensorSpec("x", "int16", (2,))
    with pytest.raises(EncodeError, match="whole rows"):
        next(encode_rows(spec, bytes(7)))
    with pytest.raises(EncodeError, match="contiguous"):
        next(encode_rows(spec, np.zeros((4, 4), np.int16)[:, :2]))


def test_crc_is_castagnoli_whatever_the_buffer() -> None:
    known = b"123456789"
    for data in (known, memoryview(known), memoryview(b"x" + known)[1:], memoryview(bytearray(known))):
        assert crc32c(data) == 0xE3069283
    assert crc32c(b"") == crc32c(memoryview(b"")) == 0


@pytest.mark.parametrize("name", DTYPES)
def test_sizes_are_those_of_numpy(name: str) -> None:
    assert np.dtype(DTYPES[name].numpy_name).itemsize == DTYPES[name].size
