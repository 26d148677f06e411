"""Reads the messages of a call: Start, which has a time limit of its own, and the messages after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.errors import DeadlineExceededError
from omni_stage.service.edges.pacing import QUIET_S
from omni_stage.service.encoding.wire import WireMessage
from omni_stage.service.request.messages.reading import RequestReader
from omni_stage.service.request.places import START_GRACE_S, Places

START_TIMEOUT_S = 30.0
"""Time limit for a call's first message, which may hold several MiB of media."""
_DATA_S: Final = 120.0
"""Longest time between two messages of a client that sends media or embeddings, perhaps over a slow network."""


async def read_start(
    messages: AsyncIterator[WireMessage], reader: RequestReader, places: Places, peer: str
) -> stage_service_pb2.Start:
    """Returns the first message. A call that has not sent it within START_GRACE_S seconds takes one of `places`.

    Raises TooManyRequestsError if the call gets no place or loses it, DeadlineExceededError, ProtocolViolationError.
    """
    place = None
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as scope:
            with places.hold(peer, partial(scope.reschedule, 0.0), after_s=START_GRACE_S) as place:
                message = await read_message(messages, reader)
    except TimeoutError as error:
        if place is not None and place.lost:
            raise places.refusal() from error
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
