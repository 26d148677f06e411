"""Fuzz targets: each reads bytes as a stage or a client does, and raises only documented errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import grpc
import grpc.aio
import torch
from google.protobuf.message import DecodeError
from PIL import Image

from omni_proto.client.errors import OmniRequestError, error_from_rpc, error_from_status
from omni_proto.client.events import event_from_response
from omni_proto.errors import OmniProtoError, WireError
from omni_proto.rpc.retry import may_retry
from omni_proto.rpc.status import STATUS_DETAILS_KEY, read_status
from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.stage.v1.tensors_pb2 import TensorChunk
from omni_proto.stage_config import StageConfig
from omni_proto.tensors import (
    TensorChunkView,
    TensorSchema,
    TensorSpec,
    decode_generate_request,
    prompt_embeds_spec,
    schema_from_proto,
    schema_hash,
    schema_to_proto,
    tensor_prompt,
)
from omni_stage.errors import CorruptTensorError, DownstreamProtocolError, InvalidTensorError, OmniStageError
from omni_stage.exchange import to_torch
from omni_stage.models.component import ImagePart
from omni_stage.payloads import AdditionalInformationPayload, PayloadLimits
from omni_stage.service.edges.downstream_protocol import DownstreamProtocol, explain_failure
from omni_stage.service.errors import MAX_MESSAGE_CHARS, to_status
from omni_stage.service.media.planning import receive_media
from omni_stage.service.request.planning.announced import EMBEDS_COPIES, check_edge
from omni_stage.service.request.planning.plan import media_rules, plan_request
from omni_stage.service.request.planning.prompt import build_prompt
from omni_stage.service.request.reading import RequestReader, deserialize_request
from support.stages.scripted_stages import ScriptedComponent

SCHEMA = TensorSchema(
    "fuzz/edge", 1, (TensorSpec("x", "bfloat16", (2,)), TensorSpec("ids", "int64"), TensorSpec("m", "bool"))
)
MAX_ROWS = 64
EMBEDS = prompt_embeds_spec(8, "bfloat16")
MAX_TRAILER_BYTES = 7000
"""Largest serialized status. HTTP/2 peers limit all headers together to 8 KiB, and the trailers hold the status and its
message."""
LIMITS = PayloadLimits(max_payload_bytes=1 << 16)


@cache
def config(*, entry: bool) -> StageConfig:
    data: dict[str, object] = {"pipeline": "fuzz", "stage": "thinker", "component": "a/b", "model": {"path": "/m"}}
    data["limits"] = {"maxPromptChars": 1000, "maxMediaBytes": 4096, "maxMediaPerRequest": 2}
    if entry:
        data["outputs"] = ["Text"]
        edge = {"stage": "talker", "target": "t", "component": "a/b", "stages": ["talker"], "outputs": ["Audio"]}
        data["downstream"] = [edge]
    else:
        data |= {"stage": "talker", "input": {"source": "thinker"}, "outputs": ["Audio"]}
    return StageConfig.model_validate(data)


@cache
def component(*, entry: bool) -> ScriptedComponent:
    return ScriptedComponent(output_schema=SCHEMA) if entry else ScriptedComponent(input_schema=SCHEMA)


def split(data: bytes) -> Iterator[bytes]:
    """Yields messages. Each is preceded by its length: one byte, or two if the first is 0xF0 or more."""
    position = 0
    while position < len(data):
        size = data[position]
        position += 1
        if size >= 0xF0 and position < len(data):
            size = (size & 0xF) << 8 | data[position]
            position += 1
        yield data[position : position + size]
        position += size


def decode(data: bytes) -> None:
    """The codec's fast path and protobuf's own parser agree."""
    try:
        ours: object = decode_generate_request(data)
    except WireError:
        ours = None
    try:
        theirs = pb.GenerateRequest.FromString(data)
    except DecodeError:
        theirs = None
    if (ours is None) != (theirs is None):
        raise AssertionError("only one of the two parsers refuses the bytes")
    if theirs is None or ours is None:
        return
    if isinstance(ours, TensorChunkView | tuple):
        many = isinstance(ours, tuple)
        read = [_fields(chunk) for chunk in (ours if isinstance(ours, tuple) else (ours,))]
        if read != [_fields(chunk) for chunk in (theirs.tensors.chunks if many else (theirs.tensor,))]:
            raise AssertionError("the two parsers read different chunks")
    elif ours != theirs:
        raise AssertionError("the two parsers read different messages")


def _fields(chunk: TensorChunkView | TensorChunk) -> tuple[object, ...]:
    return (chunk.name, chunk.row_offset, chunk.rows, chunk.crc32c, chunk.last, bytes(chunk.data))


def read_edge(data: bytes) -> None:
    """Reads the messages that follow a valid Start with tensors."""
    prompt = tensor_prompt(SCHEMA, "thinker", [(name, MAX_ROWS) for name in SCHEMA.names])
    start = pb.Start(tensors=prompt, edge_schema_hash=schema_hash(SCHEMA))
    reader = RequestReader()
    reader.expect({1: 9}, check_edge(reader.start(pb.GenerateRequest(start=start)), "thinker", SCHEMA))
    try:
        for message in split(data):
            reader.feed(deserialize_request(message))
        reader.end_of_stream()
    except OmniProtoError as error:
        check_told(error)
        return
    tensors = to_torch(reader.tensors)
    if not torch.isfinite(tensors["x"]).all() or any(len(tensor) > MAX_ROWS for tensor in tensors.values()):
        raise AssertionError("accepted tensors that must be refused")


def plan(data: bytes) -> None:
    """Reads a whole Start, at an entry stage and at a later stage, up to the call of the engine."""
    message = deserialize_request(data)
    try:
        start = RequestReader().start(message)
    except OmniStageError as error:
        check_told(error)
        return
    for entry in (True, False):
        try:
            planned = plan_request(start, config(entry=entry), component(entry=entry), 128, EMBEDS if entry else None)
            if planned.reserved_bytes < 0 or planned.output_rows > 128:
                raise AssertionError("reserves a negative number of bytes, or too many rows")
            if planned.prompt is not None and planned.prompt.embeds:
                if planned.edge is None or planned.reserved_bytes > 128 * 8 * 4 * EMBEDS_COPIES + planned.output_bytes:
                    raise AssertionError("accepts embeddings without an edge, or of more rows than the model takes")
            elif planned.prompt is not None:
                rules = media_rules(config(entry=entry), component(entry=entry), 128)
                assert rules is not None
                received = {media_id: bytearray(9) for media_id in planned.prompt.announced}
                receive_media(planned.prompt.media, received, rules)
                blank = ImagePart(Image.new("RGB", (1, 1)))
                build_prompt(planned.prompt, [blank] * len(planned.prompt.media))
        except OmniProtoError as error:
            check_told(error)


def payload(data: bytes) -> None:
    """Reads the payloads that the engine's process reads."""
    try:
        read = AdditionalInformationPayload.from_bytes(data, LIMITS)
    except (InvalidTensorError, CorruptTensorError):
        pass
    else:
        if AdditionalInformationPayload.from_bytes(read.to_bytes(), LIMITS).to_bytes() != read.to_bytes():
            raise AssertionError("a payload does not survive being written and read")
        for entry in read.entries.values():
            entry.value()


def answers(data: bytes) -> None:
    """Reads a downstream stage's responses, as a stage and as a client."""
    protocol = DownstreamProtocol("talker", ["talker", "token2wav"])
    for message in split(data):
        try:
            response = pb.GenerateResponse.FromString(message)
            event_from_response(response)
            if response.WhichOneof("message") == "failed":
                error_from_status(response.failed.status)
                may_retry(read_status(response.failed.status))
            protocol.check(response)
        except (OmniRequestError, DecodeError, DownstreamProtocolError):
            return


def trailers(data: bytes) -> None:
    """Reads the status details in the trailers of a failed downstream call."""
    metadata = grpc.aio.Metadata((STATUS_DETAILS_KEY, data))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), metadata)
    told = read_status(explain_failure(error, pipeline="p", stage="talker", request_id="r"))
    may_retry(told)
    error_from_rpc(error)
    if not told.is_of_a_stage:
        raise AssertionError("a status without a reason")


def schemas(data: bytes) -> None:
    """Reads the schemas in GetStage's response."""
    try:
        schema = schema_from_proto(pb.GetStageResponse.FromString(data).input_schema)
    except (DecodeError, OmniProtoError):
        return
    if schema_from_proto(schema_to_proto(schema)) != schema:
        raise AssertionError("a schema does not survive being written and read")
    schema_hash(schema)


def check_told(error: Exception) -> None:
    """Checks that an error's status fits into the trailers and has a reason."""
    status = to_status(error, stage="talker", request_id="r")
    told = read_status(status)
    if (
        not told.is_of_a_stage
        or not told.reason
        or len(status.message) > MAX_MESSAGE_CHARS
        or len(status.SerializeToString()) > MAX_TRAILER_BYTES
    ):
        raise AssertionError("a status that peers may refuse")


TARGETS: tuple[Callable[[bytes], None], ...] = (decode, read_edge, plan, payload, answers, schemas, trailers)
