"""Schemas of the tensors on an edge: tensor specifications, and the hash that both sides compare.

Pure data; needs only protobuf and the standard library, so that the operator can import it too.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from omni_proto.errors import SchemaError
from omni_proto.stage.v1 import tensors_pb2
from omni_proto.tensors.dtypes import dtype_from_proto, dtype_info

MAX_NAME_LENGTH: Final = 64
MAX_ROW_DIMENSIONS: Final = 8
MAX_ROW_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of one row: a row never spans messages, and a message holds at most 8 MiB."""
MAX_TENSORS: Final = 64
PROMPT_EMBEDS: Final = "prompt_embeds"
"""Name of the tensor that `Start.prompt_embeds` announces."""

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_SCHEMA_ID = re.compile(r"[a-z0-9_]+/[a-z0-9_]+\Z")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a schema: [rows, *row_shape]. Raises SchemaError if it is not well-formed."""

    name: str
    """Name in the schema: lower-case letters, digits and _."""
    dtype: str
    """Name of the element type, e.g. "bfloat16"."""
    row_shape: tuple[int, ...] = ()
    """Shape of one row; empty if a row is a single element."""
    description: str = field(default="", compare=False)
    """What a row means. Neither compared nor hashed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_shape", tuple(self.row_shape))
        if len(self.name) > MAX_NAME_LENGTH or not _NAME.match(self.name):
            raise SchemaError(
                f"tensor name {self.name[:MAX_NAME_LENGTH]!r} must be lower-case letters, digits and _, "
                f"begin with a letter and have at most {MAX_NAME_LENGTH} characters"
            )
        if len(self.row_shape) > MAX_ROW_DIMENSIONS:
            raise SchemaError(
                f"tensor {self.name!r}: row_shape has {len(self.row_shape)} dimensions, at most {MAX_ROW_DIMENSIONS}"
            )
        if any(size < 1 for size in self.row_shape):
            raise SchemaError(f"tensor {self.name!r}: row_shape {self.row_shape} must have sizes of 1 or more")
        if self.row_bytes > MAX_ROW_BYTES:
            raise SchemaError(
                f"tensor {self.name!r}: a row of shape {self.row_shape} has {self.row_bytes} bytes, "
                f"at most {MAX_ROW_BYTES}; move a dimension from row_shape to the rows"
            )

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return math.prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_elements * dtype_info(self.dtype).size


@dataclass(frozen=True, slots=True)
class TensorSchema:
    """The tensors of an edge. Raises SchemaError if it is not well-formed."""

    id: str
    """Id of the schema, e.g. "qwen2_5_omni/thinker2talker"."""
    version: int
    """Version of the schema, 1 or more."""
    tensors: tuple[TensorSpec, ...]
    """The tensors, sorted by name; they may be given in any order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(sorted(self.tensors, key=lambda spec: spec.name)))
        if len(self.id) > 2 * MAX_NAME_LENGTH or not _SCHEMA_ID.match(self.id):
            raise SchemaError(
                f"schema id {self.id[:128]!r} must look like family/edge, in lower case, at most 128 long"
            )
        if not 1 <= self.version < 2**32:
            raise SchemaError(f"schema {self.id!r}: version must be 1 or more and fit 32 bits, got {self.version}")
        if not 1 <= len(self.tensors) <= MAX_TENSORS:
            raise SchemaError(f"schema {self.id!r}: has {len(self.tensors)} tensors, 1 to {MAX_TENSORS} are allowed")
        names = [spec.name for spec in self.tensors]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise SchemaError(f"schema {self.id!r}: tensor names {repeated} occur twice")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, sorted."""
        return tuple(spec.name for spec in self.tensors)

    def spec(self, name: str) -> TensorSpec:
        """Returns the tensor called name. Raises SchemaError that lists the known names."""
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise SchemaError(f"schema {self.id!r} has no tensor {name!r}; it has {', '.join(self.names)}")


TEXT: Final = "omni/text"
"""Id of the schema of text on an edge. Every component that hands text to another stage publishes it."""
UTF8: Final = "utf8"
TEXT_SCHEMA: Final = TensorSchema(
    id=TEXT,
    version=1,
    tensors=(TensorSpec(UTF8, "uint8", (), "Text in UTF-8, one row per byte; a message holds whole characters."),),
)


def canonical_json(schema: TensorSchema) -> str:
    """Returns the schema as canonical JSON: sorted keys, tensors sorted by name, no whitespace, no descriptions."""
    data = {
        "id": schema.id,
        "version": schema.version,
        "tensors": [
            {"name": spec.name, "dtype": spec.dtype, "row_shape": list(spec.row_shape)} for spec in schema.tensors
        ],
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def schema_hash(schema: TensorSchema) -> str:
    """Returns the sha256 of the schema's canonical JSON in lower-case hex: `Start.edge_schema_hash`."""
    return hashlib.sha256(canonical_json(schema).encode("ascii")).hexdigest()


def spec_to_proto(spec: TensorSpec) -> tensors_pb2.TensorSpec:
    """Returns the protobuf message of a specification."""
    return tensors_pb2.TensorSpec(
        name=spec.name, dtype=dtype_info(spec.dtype).proto, row_shape=spec.row_shape, description=spec.description
    )


def spec_from_proto(message: tensors_pb2.TensorSpec) -> TensorSpec:
    """Returns the specification in a protobuf message. Raises SchemaError."""
    dtype = dtype_from_proto(message.dtype).name
    return TensorSpec(message.name, dtype, tuple(message.row_shape), message.description)


def schema_to_proto(schema: TensorSchema) -> tensors_pb2.TensorSchema:
    """Returns the protobuf message of a schema."""
    return tensors_pb2.TensorSchema(
        id=schema.id, version=schema.version, tensors=[spec_to_proto(spec) for spec in schema.tensors]
    )


def schema_from_proto(message: tensors_pb2.TensorSchema) -> TensorSchema:
    """Returns the schema in a protobuf message. Raises SchemaError."""
    return TensorSchema(message.id, message.version, tuple(spec_from_proto(spec) for spec in message.tensors))


def header_for(spec: TensorSpec, max_rows: int) -> tensors_pb2.TensorHeader:
    """Returns the header that announces at most max_rows rows of a tensor.

    Raises SchemaError if max_rows is negative or does not fit 64 bits.
    """
    if not 0 <= max_rows < 2**64:
        raise SchemaError(f"tensor {spec.name!r}: max_rows must be 0 or more and fit 64 bits, got {max_rows}")
    return tensors_pb2.TensorHeader(
        name=spec.name, dtype=dtype_info(spec.dtype).proto, row_shape=spec.row_shape, max_rows=max_rows
    )


def prompt_embeds_spec(hidden_size: int, dtype: str) -> TensorSpec:
    """Returns the specification of a prompt of embeddings. Raises SchemaError if edges do not support the size or
    dtype."""
    return TensorSpec(PROMPT_EMBEDS, dtype, (hidden_size,), "One input embedding for each position of the prompt.")


def tensor_prompt(
    schema: TensorSchema, source_stage: str, max_rows: Iterable[tuple[str, int]]
) -> tensors_pb2.TensorPrompt:
    """Returns the announcement of all tensors of a schema; max_rows holds (name, rows) pairs.

    Raises SchemaError unless max_rows names exactly the schema's tensors.
    """
    limits = dict(max_rows)
    if set(limits) != set(schema.names):
        raise SchemaError(f"schema {schema.id!r}: max_rows names {sorted(limits)}, not {list(schema.names)}")
    headers = [header_for(spec, limits[spec.name]) for spec in schema.tensors]
    return tensors_pb2.TensorPrompt(source_stage=source_stage, tensors=headers)
