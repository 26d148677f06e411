"""The input edge: checks what the upstream stage announces, before Accepted."""

from __future__ import annotations

from omni_proto.stage.v1 import stage_service_pb2
from omni_proto.tensors import EdgeAssembler, TensorSchema, schema_hash
from omni_stage.errors import ConfigurationError, EdgeSchemaMismatchError, InvalidRequestError


def check_edge(start: stage_service_pb2.Start, source: str, schema: TensorSchema | None) -> EdgeAssembler:
    """Returns the assembler of the announced tensors.

    Raises InvalidRequestError for another source stage, EdgeSchemaMismatchError for another schema, TensorError for
    headers that do not match the schema, and ConfigurationError if the component reads no edge.
    """
    if schema is None:
        raise ConfigurationError(f"the component reads no edge, but the stage reads {source!r}", field="input")
    if start.tensors.source_stage != source:
        raise InvalidRequestError(
            f"this stage reads stage {source!r}, but the tensors are from another stage",
            field="start.tensors.source_stage",
            limit=source,
        )
    expected = schema_hash(schema)
    if start.edge_schema_hash != expected:
        raise EdgeSchemaMismatchError(
            f"upstream does not write schema {schema.id!r} version {schema.version}, which this stage reads; "
            "run both stages from the same checkpoint, dtype and version",
            field="start.edge_schema_hash",
            limit=expected,
        )
    return EdgeAssembler(schema, start.tensors.tensors)
