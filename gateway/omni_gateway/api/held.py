"""Requests for pipelines that sleep: a stream begins with comments, any other answer waits silently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.types import Receive

from omni_gateway.api.live import COMMENT, EVENT_STREAM, LiveResponse, error_event, run_while_connected
from omni_gateway.context import Call, Gateway
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import GatewayError


async def wait_awake(gateway: Gateway, call: Call, pipeline: ServedPipeline, receive: Receive) -> None:
    """Wait until the pipeline serves. Raises GatewayError, and ClientDisconnectedError if the client leaves."""
    if pipeline.is_away:
        await run_while_connected(receive, gateway.holds.wait(pipeline, call.holder))


def respond_when_awake(
    gateway: Gateway, call: Call, pipeline: ServedPipeline, answer: Callable[[], Awaitable[LiveResponse]]
) -> LiveResponse:
    """Returns a stream that begins at once, with comments, and continues with the answer once the pipeline serves.

    An error is an event, because the status was sent. Raises GatewayError if the request's values do not fit.
    """
    # The route frees the body when it returns, but `answer` keeps the values.
    call.media_share.add(call.body_share.held)
    return LiveResponse(
        _stream(gateway, call, pipeline, answer),
        media_type=EVENT_STREAM,
        send_s=gateway.settings.send_seconds,
        comment_s=gateway.settings.keep_alive_seconds,
    )


async def _stream(
    gateway: Gateway, call: Call, pipeline: ServedPipeline, answer: Callable[[], Awaitable[LiveResponse]]
) -> AsyncGenerator[bytes, None]:
    yield COMMENT
    try:
        await gateway.holds.wait(pipeline, call.holder)
        response = await answer()
    except GatewayError as error:
        call.error = error.specific_code or error.code or ""
        yield error_event(error)
        return
    async with aclosing(response.relay()) as chunks:
        async for chunk in chunks:
            yield chunk
