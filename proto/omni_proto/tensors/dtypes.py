"""The element types of tensors, on edges and in payloads: the only table of them. Needs only protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from omni_proto.errors import SchemaError
from omni_proto.stage.v1 import tensors_pb2


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """One element type of tensors on an edge."""

    name: str
    """torch's name of the type, e.g. "bfloat16"."""
    size: int
    """Bytes of one element."""
    proto: tensors_pb2.DType
    """Value of the protobuf enum."""
    numpy_name: str
    """numpy dtype of the raw bytes, little-endian; bfloat16 is viewed as "<u2"."""
    exponent: int = 0
    """The exponent's bits, which are all set only in NaN and infinity; 0 if an element can be neither."""

    @property
    def is_float(self) -> bool:
        """Whether an element can be NaN or infinite."""
        return self.exponent != 0


DTYPES: Final = MappingProxyType(
    {
        "bfloat16": DTypeInfo("bfloat16", 2, tensors_pb2.DTYPE_BFLOAT16, "<u2", 0x7F80),
        "float16": DTypeInfo("float16", 2, tensors_pb2.DTYPE_FLOAT16, "<f2", 0x7C00),
        "float32": DTypeInfo("float32", 4, tensors_pb2.DTYPE_FLOAT32, "<f4", 0x7F80_0000),
        "float64": DTypeInfo("float64", 8, tensors_pb2.DTYPE_FLOAT64, "<f8", 0x7FF0_0000_0000_0000),
        "int8": DTypeInfo("int8", 1, tensors_pb2.DTYPE_INT8, "|i1"),
        "int16": DTypeInfo("int16", 2, tensors_pb2.DTYPE_INT16, "<i2"),
        "int32": DTypeInfo("int32", 4, tensors_pb2.DTYPE_INT32, "<i4"),
        "int64": DTypeInfo("int64", 8, tensors_pb2.DTYPE_INT64, "<i8"),
        "uint8": DTypeInfo("uint8", 1, tensors_pb2.DTYPE_UINT8, "|u1"),
        "bool": DTypeInfo("bool", 1, tensors_pb2.DTYPE_BOOL, "|b1"),
    }
)
"""Every element type by name."""
PROMPT_EMBEDS_DTYPES: Final = ("float32", "float16", "bfloat16")
"""Element types that a prompt of embeddings may have, independent of the engine's dtype."""
_BY_PROTO: Final = MappingProxyType({int(info.proto): info for info in DTYPES.values()})


def dtype_info(name: str) -> DTypeInfo:
    """Returns the element type called name. Raises SchemaError that lists the known ones."""
    info = DTYPES.get(name)
    if info is None:
        raise SchemaError(f"edges do not support dtype {name!r}; use one of {', '.join(DTYPES)}")
    return info


def dtype_from_proto(value: int) -> DTypeInfo:
    """Returns the element type of an enum value.

    Raises SchemaError for DTYPE_UNSPECIFIED and for values of a newer protocol.
    """
    info = _BY_PROTO.get(value)
    if info is None:
        raise SchemaError(f"dtype number {value} is not known here; the peer may be newer")
    return info
