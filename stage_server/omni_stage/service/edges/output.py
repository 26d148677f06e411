"""The output edge: rows of the engine's steps -> chunks of about 1 MiB, without copying what is contiguous."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from omni_proto.tensors import CHUNK_BYTES, TensorSchema, TensorSpec, crc32c, encode_tensor_chunk
from omni_stage.arrays import Array, describe_array, fits, join_bytes
from omni_stage.errors import ModelExecutionError
from omni_stage.service.wire import OutgoingChunk


@dataclass(slots=True)
class _Tensor:
    """What was sent of one tensor."""

    spec: TensorSpec
    row_bytes: int = field(init=False)
    rows: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        self.row_bytes = self.spec.row_bytes

    def check(self, array: Array) -> Array:
        """Returns the array. Raises ModelExecutionError if it is not what the schema says."""
        if not fits(array, self.spec):
            raise ModelExecutionError(
                f"the component published tensor {self.spec.name!r} as {describe_array(array)}; "
                f"its schema says {self.spec.dtype} rows of {list(self.spec.row_shape)}"
            )
        return array

    def encode(self, parts: Sequence[Array], *, last: bool) -> Iterator[OutgoingChunk]:
        """The rows of some steps, numbered from those before. Lazy, so that flow control bounds what is in memory."""
        name, row_bytes = self.spec.name, self.row_bytes
        data = join_bytes(parts) if parts else memoryview(b"")
        rows = data.nbytes // row_bytes
        if not rows and last:
            yield OutgoingChunk(encode_tensor_chunk(name, self.rows, 0, 0, True, b""), 0)
        step = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, rows, step):
            end = min(start + step, rows)
            part = data[start * row_bytes : end * row_bytes]
            wire = encode_tensor_chunk(name, self.rows, end - start, crc32c(part), last and end == rows, part)
            self.rows += end - start
            yield OutgoingChunk(wire, part.nbytes)


class EdgeWriter:
    """Numbers the rows of one request's tensors."""

    def __init__(self, schema: TensorSchema) -> None:
        self._tensors = {spec.name: _Tensor(spec) for spec in schema.tensors}

    def encode(
        self, batch: Sequence[Mapping[str, Array]], *, last: bool, complete: Collection[str] = ()
    ) -> Iterator[OutgoingChunk]:
        """The rows of several steps as few chunks. The tensors of complete end with them; with last all do.

        Raises ModelExecutionError if a tensor is not what the schema says.
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
        for name, tensor in self._tensors.items():
            ends = (last or name in complete) and not tensor.ended
            tensor.ended = tensor.ended or ends
            if ends or name in parts:
                yield from tensor.encode(parts.get(name, ()), last=ends)
