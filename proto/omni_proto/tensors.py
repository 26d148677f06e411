"""Tensors on an edge: one door to schemas, the wire codec and reassembly.

upstream rows -> split_rows -> EncodedChunk -> serialize_generate_request -> wire
wire -> deserialize_generate_request -> TensorChunkView -> EdgeAssembler -> ReceivedTensor
"""

from __future__ import annotations

from omni_proto.tensor_schema import (
    DTYPES,
    MAX_ROW_BYTES,
    DTypeInfo,
    TensorSchema,
    TensorSpec,
    canonical_json,
    dtype_from_proto,
    dtype_info,
    header_for,
    schema_from_proto,
    schema_hash,
    schema_to_proto,
    spec_from_proto,
    spec_to_proto,
    tensor_prompt,
)

__all__ = [
    "DTYPES",
    "MAX_ROW_BYTES",
    "DTypeInfo",
    "TensorSchema",
    "TensorSpec",
    "canonical_json",
    "dtype_from_proto",
    "dtype_info",
    "header_for",
    "schema_from_proto",
    "schema_hash",
    "schema_to_proto",
    "spec_from_proto",
    "spec_to_proto",
    "tensor_prompt",
]
