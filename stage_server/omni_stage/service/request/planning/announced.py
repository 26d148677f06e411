"""Checks what Start announces, before Accepted: the tensors of an edge, or the embeddings of a prompt.

omni_stage.payloads is imported only for a request with embeddings, because most stages never accept one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_proto.errors import SchemaError
from omni_proto.stage.v1 import stage_service_pb2, tensors_pb2
from omni_proto.stage_config import StageConfig
from omni_proto.tensors import (
    PROMPT_EMBEDS,
    PROMPT_EMBEDS_DTYPES,
    EdgeAssembler,
    ReceivedTensor,
    TensorSchema,
    TensorSpec,
    crc32c,
    dtype_from_proto,
    prompt_embeds_spec,
    schema_hash,
)
from omni_stage.errors import (
    ConfigurationError,
    EdgeSchemaMismatchError,
    InvalidRequestError,
    InvalidTensorError,
    PromptTooLongError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    from omni_stage.payloads import PromptEmbedsPayload

EMBEDS_COPIES = 2
"""How many copies of a request's embeddings the stage server holds at most: first the received rows and the payload,
later the payload and the tensor that vLLM keeps with the request."""
_FIELD = "start.prompt_embeds"


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


def plan_embeds(
    header: tensors_pb2.TensorHeader, accepted: TensorSpec | None, config: StageConfig, max_model_len: int
) -> EdgeAssembler:
    """Returns the assembler for the announced rows. `accepted`: form of the embeddings that the engine takes, or None.

    Raises InvalidRequestError, InvalidTensorError, PromptTooLongError, RequestTooLargeError.
    """
    if accepted is None:
        raise InvalidRequestError(_refusal(config), field=_FIELD)
    hidden_size = accepted.row_shape[0]
    if header.name != PROMPT_EMBEDS:
        raise InvalidTensorError(
            f"the tensor must be named {PROMPT_EMBEDS}", field=f"{_FIELD}.name", limit=PROMPT_EMBEDS
        )
    dtype = _dtype_name(header.dtype)
    if tuple(header.row_shape) != (hidden_size,):
        raise InvalidTensorError(
            f"a row must have the shape [{hidden_size}], the model's hidden size",
            field=f"{_FIELD}.row_shape",
            limit=hidden_size,
        )
    if header.max_rows == 0:
        raise InvalidRequestError("the prompt has no rows; give at least one", field=f"{_FIELD}.max_rows")
    if header.max_rows >= max_model_len:
        raise PromptTooLongError(
            f"the prompt announces up to {header.max_rows} rows; prompt and output together have at most "
            f"{max_model_len}",
            field=f"{_FIELD}.max_rows",
            limit=f"{max_model_len - 1} rows",
        )
    from omni_stage.payloads import DEFAULT_LIMITS

    spec = prompt_embeds_spec(hidden_size, dtype)
    size, most = header.max_rows * spec.row_bytes, DEFAULT_LIMITS.max_tensor_bytes
    if size > most:
        raise RequestTooLargeError(
            f"the announced embeddings take up to {size} bytes; the limit is {most}; shorten the prompt",
            field=_FIELD,
            limit=f"{most} bytes",
        )
    return EdgeAssembler(TensorSchema("omni/prompt_embeds", 1, (spec,)), [header])


def build_embeds(received: ReceivedTensor) -> PromptEmbedsPayload:
    """Returns the payload with one copy of the received rows. Raises InvalidRequestError if there are none."""
    if received.rows == 0:
        raise InvalidRequestError("no row of the prompt arrived; send at least one", field=_FIELD)
    from omni_stage.payloads import PromptEmbedsPayload

    data = bytes(received.data)
    return PromptEmbedsPayload(data=data, shape=list(received.shape), dtype=received.spec.dtype, checksum=crc32c(data))


def _dtype_name(value: int) -> str:
    try:
        name = dtype_from_proto(value).name
    except SchemaError:
        name = ""
    if name not in PROMPT_EMBEDS_DTYPES:
        listed = ", ".join(PROMPT_EMBEDS_DTYPES)
        raise InvalidTensorError(f"the dtype must be one of {listed}", field=f"{_FIELD}.dtype", limit=listed)
    return name


def _refusal(config: StageConfig) -> str:
    refused = f"stage {config.stage!r} takes no prompt embeddings"
    if config.downstream:
        readers = ", ".join(repr(edge.stage) for edge in config.downstream)
        return f"{refused}: stage {readers} also needs the token ids of the prompt; send text, chat or token_ids"
    return f"{refused}; send text, chat or token_ids, or have the stage's engineArgs.enablePromptEmbeds set to true"
