"""Tensors on an edge: schemas, the wire codec and reassembly. Import all public names from here.

sending:   rows -> encode_rows, encode_tensor_chunks -> EncodedChunk -> serialize_generate_request -> bytes
receiving: bytes -> decode_generate_request -> TensorChunkView -> EdgeAssembler -> ReceivedTensor
"""

from __future__ import annotations

from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.tensors.assembly import (
    EdgeAssembler,
    ReceivedTensor,
    Reserve,
    TensorAssembler,
    check_headers,
)
from omni_proto.tensors.codec import (
    CHUNK_BYTES,
    EncodedChunk,
    decode_generate_request,
    encode_rows,
    encode_tensor_chunk,
    encode_tensor_chunks,
    serialize_generate_request,
)
from omni_proto.tensors.dtypes import DTYPES, PROMPT_EMBEDS_DTYPES, DTypeInfo, dtype_from_proto, dtype_info
from omni_proto.tensors.scan import TensorChunkView
from omni_proto.tensors.schema import (
    MAX_ROW_BYTES,
    PROMPT_EMBEDS,
    TensorSchema,
    TensorSpec,
    canonical_json,
    header_for,
    prompt_embeds_spec,
    schema_from_proto,
    schema_hash,
    schema_to_proto,
    spec_from_proto,
    spec_to_proto,
    tensor_prompt,
)
from omni_proto.tensors.values import (
    MissingExtraError,
    bfloat16_to_float32,
    crc32c,
    float32_to_bfloat16,
    is_finite,
)

__all__ = [
    "CHUNK_BYTES",
    "DTYPES",
    "MAX_MESSAGE_BYTES",
    "MAX_ROW_BYTES",
    "PROMPT_EMBEDS",
    "PROMPT_EMBEDS_DTYPES",
    "DTypeInfo",
    "EdgeAssembler",
    "EncodedChunk",
    "MissingExtraError",
    "ReceivedTensor",
    "Reserve",
    "TensorAssembler",
    "TensorChunkView",
    "TensorSchema",
    "TensorSpec",
    "bfloat16_to_float32",
    "canonical_json",
    "check_headers",
    "crc32c",
    "decode_generate_request",
    "dtype_from_proto",
    "dtype_info",
    "encode_rows",
    "encode_tensor_chunk",
    "encode_tensor_chunks",
    "float32_to_bfloat16",
    "header_for",
    "is_finite",
    "prompt_embeds_spec",
    "schema_from_proto",
    "schema_hash",
    "schema_to_proto",
    "serialize_generate_request",
    "spec_from_proto",
    "spec_to_proto",
    "tensor_prompt",
]
