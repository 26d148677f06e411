"""The output edge: rows of the engine's steps -> chunks of about 1 MiB, without copying what is contiguous."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from omni_proto.tensors import CHUNK_BYTES, TensorSchema, TensorSpec, encode_rows
from omni_stage.arrays import Array, describe_array, fits, join, view_bytes
from omni_stage.errors import ModelExecutionError
from omni_stage.service.wire import OutgoingChunk


class EdgeWriter:
    """Numbers the rows of one request's tensors."""

    def __init__(self, schema: TensorSchema) -> None:
        self._schema = schema
        self._rows = dict.fromkeys(schema.names, 0)
        self._ended: set[str] = set()

    def encode(
        self, batch: Sequence[Mapping[str, Array]], *, last: bool, complete: Collection[str] = ()
    ) -> Iterator[OutgoingChunk]:
        """The rows of several steps as few chunks. The tensors of complete end with them; with last all do.

        Raises ModelExecutionError if a tensor is not what the schema says.
        """
        for step in batch:
            for name in step:
                if name not in self._rows:
                    raise ModelExecutionError(
                        f"the component published tensor {name!r}, which its schema does not have"
                    )
        for spec in self._schema.tensors:
            parts = [_checked(spec, step[spec.name]) for step in batch if spec.name in step]
            parts = [part for part in parts if len(part)]
            ends = (last or spec.name in complete) and spec.name not in self._ended
            if ends:
                self._ended.add(spec.name)
            if parts:
                yield from self._chunks(spec, join(parts), last=ends)
            elif ends:
                yield from self._chunks(spec, None, last=True)

    def _chunks(self, spec: TensorSpec, tensor: Array | None, *, last: bool) -> Iterator[OutgoingChunk]:
        if tensor is None:
            for wire in encode_rows(spec, b"", first_row=self._rows[spec.name], last=last):
                yield OutgoingChunk(wire, 0)
            return
        data = view_bytes(tensor)
        rows_a_chunk = max(1, CHUNK_BYTES // spec.row_bytes)
        for start in range(0, len(tensor), rows_a_chunk):
            end = min(start + rows_a_chunk, len(tensor))
            part = data[start * spec.row_bytes : end * spec.row_bytes]
            first_row = self._rows[spec.name]
            for wire in encode_rows(spec, part, first_row=first_row, last=last and end == len(tensor)):
                yield OutgoingChunk(wire, part.nbytes)
            self._rows[spec.name] += end - start


def _checked(spec: TensorSpec, tensor: Array) -> Array:
    if not fits(tensor, spec):
        raise ModelExecutionError(
            f"the component published tensor {spec.name!r} as {describe_array(tensor)}; "
            f"its schema says {spec.dtype} rows of {list(spec.row_shape)}"
        )
    return tensor
