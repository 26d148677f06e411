"""Tensors on an edge: schemas, the wire codec and reassembly. Import all public names from here.

sending:   rows -> encode_rows, encode_tensor_chunks -> EncodedChunk -> serialize_generate_request -> bytes
receiving: bytes -> decode_generate_request -> TensorChunkView -> EdgeAssembler -> ReceivedTensor
"""

from omni_proto.rpc.options import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from omni_proto.tensors.assembly import (
    EdgeAssembler as EdgeAssembler,
    ReceivedTensor as ReceivedTensor,
    Reserve as Reserve,
    TensorAssembler as TensorAssembler,
    check_headers as check_headers,
)
from omni_proto.tensors.codec import (
    CHUNK_BYTES as CHUNK_BYTES,
    EncodedChunk as EncodedChunk,
    TensorChunkView as TensorChunkView,
    decode_generate_request as decode_generate_request,
    encode_rows as encode_rows,
    encode_tensor_chunk as encode_tensor_chunk,
    encode_tensor_chunks as encode_tensor_chunks,
    serialize_generate_request as serialize_generate_request,
)
from omni_proto.tensors.dtypes import (
    DTYPES as DTYPES,
    PROMPT_EMBEDS_DTYPES as PROMPT_EMBEDS_DTYPES,
    DTypeInfo as DTypeInfo,
    dtype_from_proto as dtype_from_proto,
    dtype_info as dtype_info,
)
from omni_proto.tensors.schema import (
    MAX_ROW_BYTES as MAX_ROW_BYTES,
    PROMPT_EMBEDS as PROMPT_EMBEDS,
    TEXT as TEXT,
    TEXT_SCHEMA as TEXT_SCHEMA,
    UTF8 as UTF8,
    TensorSchema as TensorSchema,
    TensorSpec as TensorSpec,
    canonical_json as canonical_json,
    header_for as header_for,
    prompt_embeds_spec as prompt_embeds_spec,
    schema_from_proto as schema_from_proto,
    schema_hash as schema_hash,
    schema_to_proto as schema_to_proto,
    spec_from_proto as spec_from_proto,
    spec_to_proto as spec_to_proto,
    tensor_prompt as tensor_prompt,
)
from omni_proto.tensors.values import (
    MissingExtraError as MissingExtraError,
    crc32c as crc32c,
    is_finite as is_finite,
)
