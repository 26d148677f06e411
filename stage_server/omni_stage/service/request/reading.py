"""Reads the messages of a Generate call: Start, then media or tensor chunks, then End.

`read_start` and `read_input` wait for the messages, each with a time limit. RequestReader takes them in the order of
arrival, keeps their content and raises errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final

from omni_proto.errors import WireError
from omni_proto.runtime.limits import Client
from omni_proto.stage.v1 import stage_service_pb2
from omni_proto.tensors import EdgeAssembler, ReceivedTensor, TensorChunkView, decode_generate_request
from omni_stage.errors import DeadlineExceededError, ProtocolViolationError
from omni_stage.service.edges.outbox import QUIET_S
from omni_stage.service.guard.admission import START_GRACE_S, CallQuota
from omni_stage.service.guard.field_count import MAX_FIELDS, has_too_many_fields

WireMessage = stage_service_pb2.GenerateRequest | TensorChunkView | tuple[TensorChunkView, ...] | WireError
"""What the deserializer returns. For a malformed message it returns the error as a value, which the servicer turns into
a status as usual."""
START_TIMEOUT_S = 30.0
"""Time limit for a call's first message, which may hold several MiB of media."""
_DATA_S: Final = 120.0
"""Longest time between two messages of a client that sends media or embeddings, perhaps over a slow network."""


def deserialize_request(data: bytes) -> WireMessage:
    """Returns one decoded message of the caller. Never raises, because gRPC would end the call without a reason."""
    if has_too_many_fields(data):
        return WireError(f"it has more than {MAX_FIELDS} fields; a chat has at most 1,024 parts")
    try:
        return decode_generate_request(data)
    except WireError as error:
        return error


class _State(Enum):
    START = auto()
    INPUT = auto()
    ENDED = auto()


@dataclass(slots=True)
class MediaBuffer:
    """A medium that arrives in pieces. Memory is allocated only when a piece arrives, whatever size was announced."""

    total_bytes: int
    data: bytearray = field(default_factory=bytearray)

    def add(self, offset: int, piece: bytes, field_path: str) -> None:
        """Append a piece. Raises ProtocolViolationError if it does not continue the medium."""
        if not piece:
            raise ProtocolViolationError("a media chunk holds no bytes", field=field_path)
        if offset != len(self.data):
            raise ProtocolViolationError(
                f"media chunk begins at byte {offset}, expected {len(self.data)}: pieces come in order, without gaps",
                field=field_path,
            )
        if offset + len(piece) > self.total_bytes:
            raise ProtocolViolationError(
                f"media chunks hold more than the announced {self.total_bytes} bytes",
                field=field_path,
                limit=f"{self.total_bytes} bytes",
            )
        self.data += piece


class RequestReader:
    """State of one call's input. After End, `done` is true, and `media` and `tensors` hold the input."""

    def __init__(self) -> None:
        self._state = _State.START
        self.media: dict[int, MediaBuffer] = {}
        self.edge: EdgeAssembler | None = None
        self.tensors: dict[str, ReceivedTensor] = {}
        """The tensors of the edge; empty before End."""

    @property
    def done(self) -> bool:
        """Whether End was received."""
        return self._state is _State.ENDED

    @property
    def expects_data(self) -> bool:
        """Whether Start announced data that follows it. Valid after `expect`."""
        return bool(self.media) or self.edge is not None

    def start(self, message: WireMessage) -> stage_service_pb2.Start:
        """Take the first message. Raises ProtocolViolationError if it is not Start."""
        kind = _kind(message)
        if self._state is not _State.START or not isinstance(message, stage_service_pb2.GenerateRequest):
            raise ProtocolViolationError(f"the first message must be Start, got {kind}", field="message")
        if kind != "start":
            raise ProtocolViolationError(f"the first message must be Start, got {kind}", field="message")
        self._state = _State.INPUT
        return message.start

    def expect(self, media: Mapping[int, int], edge: EdgeAssembler | None) -> None:
        """Set what Start announced: total bytes by media id, and the assembler of the tensors."""
        self.media = {media_id: MediaBuffer(total) for media_id, total in media.items()}
        self.edge = edge

    def feed(self, message: WireMessage) -> None:
        """Take one message after Start.

        Raises ProtocolViolationError, and TensorError for tensor chunks that are wrong or missing.
        """
        kind = _kind(message)
        if self._state is _State.ENDED:
            raise ProtocolViolationError(f"{kind} arrived after End, the last message", field="message")
        if isinstance(message, TensorChunkView):
            message = (message,)
        if isinstance(message, tuple):
            # A message without chunks says that rows still follow (service/edges/downstream_call.py).
            if self.edge is None:
                raise ProtocolViolationError("a tensor chunk arrived, but Start announced no tensors", field="tensor")
            for chunk in message:
                self.edge.add(chunk)
            return
        if not isinstance(message, stage_service_pb2.GenerateRequest) or kind == "start":
            raise ProtocolViolationError("Start arrived twice", field="start")
        if kind == "media":
            self._add_media(message)
        else:
            self._finish()

    def end_of_stream(self) -> None:
        """Check the input once the caller has closed its side. Raises ProtocolViolationError if End is missing."""
        if not self.done:
            missing = "Start" if self._state is _State.START else "End"
            raise ProtocolViolationError(f"the stream ended before {missing}", field="message")

    def _add_media(self, message: stage_service_pb2.GenerateRequest) -> None:
        path = f"media[{message.media.media_id}]"
        buffer = self.media.get(message.media.media_id)
        if buffer is None:
            raise ProtocolViolationError(
                f"media chunk of medium {message.media.media_id}, which Start did not announce", field=path
            )
        buffer.add(message.media.offset, message.media.data, path)

    def _finish(self) -> None:
        for media_id, buffer in self.media.items():
            if len(buffer.data) != buffer.total_bytes:
                raise ProtocolViolationError(
                    f"End arrived after {len(buffer.data)} of {buffer.total_bytes} bytes of medium {media_id}",
                    field=f"media[{media_id}]",
                )
        if self.edge is not None:
            self.tensors = self.edge.finish()
        self._state = _State.ENDED


def _kind(message: WireMessage) -> str:
    """Returns the protocol's name of a message. Raises ProtocolViolationError if it is not a valid message."""
    if isinstance(message, WireError):
        raise ProtocolViolationError(f"a message cannot be read: {message}", field="message") from message
    if isinstance(message, TensorChunkView):
        return "a tensor chunk"
    if isinstance(message, tuple):
        return "tensor chunks"
    kind = message.WhichOneof("message")
    if kind is None:
        raise ProtocolViolationError("an empty message, or one of a newer protocol", field="message")
    return str(kind)


async def read_start(
    messages: AsyncIterator[WireMessage], reader: RequestReader, quota: CallQuota, client: Client
) -> stage_service_pb2.Start:
    """Returns the first message. A call that has not sent it within START_GRACE_S seconds takes a slot of `quota`.

    Raises TooManyRequestsError if the call gets no slot or loses it, DeadlineExceededError, ProtocolViolationError.
    """
    slot = None
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as scope:
            with quota.hold(client, partial(scope.reschedule, 0.0), after_s=START_GRACE_S) as slot:
                message = await read_message(messages, reader)
    except TimeoutError as error:
        if slot is not None and slot.evicted:
            raise quota.refusal() from error
        raise DeadlineExceededError(
            f"Start did not arrive within {START_TIMEOUT_S:g} s", field="start", limit=f"{START_TIMEOUT_S:g} s"
        ) from error
    return reader.start(message)


async def read_message(messages: AsyncIterator[WireMessage], reader: RequestReader) -> WireMessage:
    """Returns the next message. Raises ProtocolViolationError if the client ended the stream too early."""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        reader.end_of_stream()
        raise


async def read_input(messages: AsyncIterator[WireMessage], reader: RequestReader, *, source: str) -> WireMessage:
    """Returns the next message after Start. `source`: name of the upstream stage, empty for a client.

    Raises DeadlineExceededError if the caller is silent for too long, and what `read_message` raises.
    """
    limit_s = _DATA_S if reader.expects_data and not source else QUIET_S
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await read_message(messages, reader)
    except TimeoutError as error:
        if not scope.expired():
            raise
        what = f"stage {source!r} sent neither rows nor a sign of life" if source else "the caller sent no data, no End"
        raise DeadlineExceededError(
            f"{what} for {limit_s:g} s; the request ends, because it keeps others from being served",
            field="tensor" if source else "message",
            limit=f"{limit_s:g} s",
        ) from error
