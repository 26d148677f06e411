"""Tensor chunks as a sender would make them, and their reassembly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_proto.tensors import DTYPES, EdgeAssembler, TensorChunkView, TensorSpec, crc32c

I16 = TensorSpec("x", "int16", (2,))


def chunk(offset: int, values: list[int], *, last: bool = False, name: str = "x") -> TensorChunkView:
    """Returns a chunk of int16 rows with two elements. Both elements of row i are values[i]."""
    data = np.repeat(np.array(values, dtype="<i2"), 2).tobytes()
    return TensorChunkView(name, offset, len(values), crc32c(data), last, memoryview(data))


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Returns the values as bfloat16, rounded towards zero: the upper half of each float32."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def tensor_of(spec: TensorSpec, rows: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    size = rows * spec.row_elements
    if spec.dtype == "bfloat16":
        return bfloat16_bits(rng.standard_normal(size, dtype=np.float32)).tobytes()
    if spec.dtype == "bool":
        return rng.integers(0, 2, size, dtype=np.uint8).tobytes()
    info = DTYPES[spec.dtype]
    if info.is_float:
        return rng.standard_normal(size).astype(info.numpy_name).tobytes()
    limits = np.iinfo(info.numpy_name)
    return rng.integers(limits.min, limits.max, size, dtype=info.numpy_name, endpoint=True).tobytes()


def receive(edge: EdgeAssembler, chunks: list[TensorChunkView]) -> dict[str, bytes]:
    for item in chunks:
        edge.add(item)
    return {name: bytes(tensor.data) for name, tensor in edge.finish().items()}
