"""The output edge: packs rows of the engine's steps into messages of about 1 MiB, without copying contiguous data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from omni_proto.tensors import (
    CHUNK_BYTES,
    TEXT,
    TensorChunkView,
    TensorSchema,
    TensorSpec,
    crc32c,
    encode_tensor_chunks,
)
from omni_stage.errors import ModelExecutionError
from omni_stage.exchange import Array, describe_array, fits, join_bytes
from omni_stage.service.wire import OutgoingChunk

MAX_CHARACTER_BYTES: Final = 4


@dataclass(slots=True)
class _Tensor:
    """One tensor of the edge, and how many of its rows have been sent."""

    spec: TensorSpec
    is_text: bool = False
    """Whether the rows are bytes of UTF-8, so that no chunk may end inside a character."""
    row_bytes: int = field(init=False)
    rows: int = 0
    ended: bool = False
    _known_dtype: object = None
    """dtype of the last valid array. Comparing dtypes is faster than comparing the names of types for every array."""

    def __post_init__(self) -> None:
        self.row_bytes = self.spec.row_bytes

    def check(self, array: Array) -> Array:
        """Returns the array. Raises ModelExecutionError if it does not match the schema."""
        shape = array.shape
        if array.dtype is self._known_dtype and shape and shape[1:] == self.spec.row_shape:
            return array
        if not fits(array, self.spec):
            raise ModelExecutionError(
                f"the component published tensor {self.spec.name!r} as {describe_array(array)}; "
                f"its schema says {self.spec.dtype} rows of {list(self.spec.row_shape)}"
            )
        self._known_dtype = array.dtype
        return array

    def cut(self, parts: Sequence[Array], *, last: bool) -> Iterator[TensorChunkView]:
        """Yields the rows as chunks, whose row numbers continue after the rows already sent. A chunk's checksum is
        computed when the chunk is read."""
        name, row_bytes = self.spec.name, self.row_bytes
        data = join_bytes(parts) if parts else memoryview(b"")
        rows = data.nbytes // row_bytes
        if not rows and last:
            yield TensorChunkView(name, self.rows, 0, 0, True, data)
        step = max(1, CHUNK_BYTES // row_bytes)
        start = 0
        while start < rows:
            end = min(start + step, rows)
            if self.is_text and end < rows:
                end = _character_before(data, end)
            part = data[start * row_bytes : end * row_bytes]
            chunk = TensorChunkView(name, self.rows, end - start, crc32c(part), last and end == rows, part)
            self.rows += end - start
            start = end
            yield chunk


class EdgeWriter:
    """Packs the rows of one request's tensors into messages, and numbers the rows."""

    def __init__(self, schema: TensorSchema) -> None:
        self._tensors = {spec.name: _Tensor(spec, schema.id == TEXT) for spec in schema.tensors}

    def encode(
        self, batch: Sequence[Mapping[str, Array]], *, last: bool, complete: Collection[str] = ()
    ) -> Iterator[OutgoingChunk]:
        """Returns the rows of several steps as one message, or as several messages if the rows exceed CHUNK_BYTES.

        `complete` names tensors whose last row is in this batch; `last` means that every tensor ends with this batch.
        A message is made only when the caller reads it, so that flow control bounds memory.

        Raises ModelExecutionError if a tensor does not match the schema.
        """
        parts: dict[str, list[Array]] = {}
        for step in batch:
            for name, array in step.items():
                tensor = self._tensors.get(name)
                if tensor is None:
                    raise ModelExecutionError(
                        f"the component published tensor {name!r}, which its schema does not have"
                    )
                if tensor.check(array).shape[0]:
                    parts.setdefault(name, []).append(array)
        return _pack(self._cut(parts, last=last, complete=complete))

    def _cut(
        self, parts: Mapping[str, Sequence[Array]], *, last: bool, complete: Collection[str]
    ) -> Iterator[TensorChunkView]:
        for name, tensor in self._tensors.items():
            ends = (last or name in complete) and not tensor.ended
            tensor.ended = tensor.ended or ends
            if ends or name in parts:
                yield from tensor.cut(parts.get(name, ()), last=ends)


def _pack(chunks: Iterable[TensorChunkView]) -> Iterator[OutgoingChunk]:
    """Yields messages of consecutive chunks, each with at most as much data as the largest chunk (CHUNK_BYTES)."""
    batch: list[TensorChunkView] = []
    size = 0
    for chunk in chunks:
        if batch and size + chunk.data.nbytes > CHUNK_BYTES:
            yield OutgoingChunk(encode_tensor_chunks(batch), size)
            batch, size = [], 0
        batch.append(chunk)
        size += chunk.data.nbytes
    if batch:
        yield OutgoingChunk(encode_tensor_chunks(batch), size)


def _character_before(data: memoryview, end: int) -> int:
    """Returns where the character begins that holds byte `end` of a text in UTF-8."""
    return next((at for at in range(end, end - MAX_CHARACTER_BYTES, -1) if data[at] & 0xC0 != 0x80), end)
