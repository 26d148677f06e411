"""Responses to the caller: one writer for this stage's events and for those relayed from downstream stages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NewType

import grpc
from google.rpc import status_pb2
from grpc import StatusCode

from omni_proto.rpc.status import read_status
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_stage.service.errors import CallerLeftError
from omni_stage.service.load import LoadMeter
from omni_stage.service.metering import AnswerMeter

EncodedResponse = NewType("EncodedResponse", bytes)
"""A whole GenerateResponse, as bytes."""

_KEY_TEXT = stage_service_pb2.GenerateResponse.TEXT_FIELD_NUMBER << 3 | 2
_KEY_TEXT_TEXT = events_pb2.TextDelta.TEXT_FIELD_NUMBER << 3 | 2
_SHORT = 0x7F - 2
"""Longest text in bytes for which each length prefix takes one byte."""


def serialize_response(message: stage_service_pb2.GenerateResponse | EncodedResponse) -> bytes:
    """Returns the bytes of one message to the caller."""
    return message if isinstance(message, bytes) else message.SerializeToString()


class TextEncoder:
    """Encodes a stage's texts as GenerateResponses, with the same bytes as protobuf.

    Most texts are single tokens, and therefore short. Short texts are encoded here, because building the protobuf
    message would take four times as long.
    """

    def __init__(self, stage: str) -> None:
        self._head = stage_service_pb2.GenerateResponse(stage=stage).SerializeToString()
        self._stage = stage

    def encode(self, text: str) -> EncodedResponse:
        """Returns the bytes of a message with this text."""
        data = text.encode()
        size = len(data)
        if size > _SHORT:
            delta = events_pb2.TextDelta(text=text)
            whole = stage_service_pb2.GenerateResponse(stage=self._stage, text=delta)
            return EncodedResponse(whole.SerializeToString())
        return EncodedResponse(self._head + bytes((_KEY_TEXT, size + 2, _KEY_TEXT_TEXT, size)) + data)


class ResponseWriter:
    """Writes messages one at a time (gRPC allows one write in progress) and keeps each stage's outcome.

    Accepted is sent first; messages that downstream stages send earlier are held back until then.
    """

    def __init__(
        self, stage: str, context: Any, meter: AnswerMeter | None = None, load: LoadMeter | None = None
    ) -> None:
        """meter: if given, records every message that was written. load: if given, is reported with Accepted."""
        self._stage = stage
        self._context = context
        self._meter = meter
        self._load = load
        self._lock = self.quiet = asyncio.Lock()
        """While this lock is held, no write is in progress. Code that cancels tasks that may write, and sends messages
        after that, must hold it: a cancelled write continues inside gRPC, and the next write would fail."""
        self.outcomes: dict[str, events_pb2.StageOutcome] = {}
        self._held: list[stage_service_pb2.GenerateResponse] | None = []
        self._texts = TextEncoder(stage)

    async def accept(self, accepted: events_pb2.Accepted) -> None:
        """Send Accepted, then the messages that were held back."""
        if self._load is not None:
            await self._context.send_initial_metadata(self._load.report().to_metadata())
        held, self._held = self._held or [], None
        await self.relay(stage_service_pb2.GenerateResponse(stage=self._stage, accepted=accepted))
        for response in held:
            await self.relay(response)

    async def send_text(self, text: str) -> None:
        """Send text of this stage, after `accept`. Waits while the caller reads slowly. Runs once per token."""
        message = self._texts.encode(text)
        lock = self._lock
        await lock.acquire()
        try:
            await self._write(message)
        finally:
            lock.release()
        if self._meter is not None:
            self._meter.note_text()

    async def send(
        self,
        *,
        text: events_pb2.TextDelta | None = None,
        transcript: events_pb2.TextDelta | None = None,
        tokens: events_pb2.TokenDelta | None = None,
        tool_call: events_pb2.ToolCallDelta | None = None,
        reasoning: events_pb2.ReasoningDelta | None = None,
        audio: events_pb2.AudioChunk | None = None,
        finished: events_pb2.StageFinished | None = None,
        summary: events_pb2.Summary | None = None,
    ) -> None:
        """Send one event of this stage. Waits while the caller reads slowly."""
        await self.relay(
            stage_service_pb2.GenerateResponse(
                stage=self._stage,
                text=text,
                transcript=transcript,
                tokens=tokens,
                tool_call=tool_call,
                reasoning=reasoning,
                audio=audio,
                finished=finished,
                summary=summary,
            )
        )

    async def send_failed(self, status: status_pb2.Status, default_stage: str) -> None:
        """Send StageFailed for the stage that the status names, or for default_stage if it names none."""
        stage = read_status(status).stage or default_stage
        failed = events_pb2.StageFailed(status=status)
        await self.relay(stage_service_pb2.GenerateResponse(stage=stage, failed=failed))

    async def relay(self, response: stage_service_pb2.GenerateResponse) -> None:
        """Send a message unchanged; hold it back before `accept`."""
        self._note(response)
        if self._held is not None:
            self._held.append(response)
            return
        async with self._lock:
            await self._write(response)
            if self._meter is not None:
                self._meter.note(response)

    async def _write(self, message: Any) -> None:
        """Write a message. Raises CallerLeftError if the caller has left: gRPC may cancel this task only later."""
        try:
            await self._context.write(message)
        except grpc.aio.InternalError as error:
            raise CallerLeftError("the caller left while a message was written to it") from error

    def note_cancelled(self, stage: str) -> None:
        """Record that this stage cancelled its call to a downstream stage, unless that stage reported an outcome."""
        cancelled = events_pb2.StageOutcome(stage=stage, code=StatusCode.CANCELLED.value[0])
        self.outcomes.setdefault(stage, cancelled)

    def summarize(self, stages: Sequence[str]) -> list[events_pb2.StageOutcome]:
        """Returns the outcomes of the stages that have one, in the order of `stages`."""
        return [self.outcomes[stage] for stage in stages if stage in self.outcomes]

    def _note(self, response: stage_service_pb2.GenerateResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "finished":
            finished = response.finished
            self.outcomes[response.stage] = events_pb2.StageOutcome(
                stage=response.stage, finish_reason=finished.finish_reason, usage=finished.usage
            )
        elif kind == "failed":
            self.outcomes[response.stage] = events_pb2.StageOutcome(
                stage=response.stage, code=response.failed.status.code
            )
