"""The memory of large inputs: what is counted, what is refused, and when it is freed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_gateway.api.body_route import BodyRoute
from omni_gateway.api.live import DeferredResponse
from omni_gateway.context import Budget, Gateway, Share
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.errors import TooLargeError, UnavailableError
from omni_gateway.guard.body import BodyReader
from omni_gateway.guard.middleware import Guard
from omni_gateway.guard.refusals import Refusals
from omni_gateway.openai.chat_messages import Body
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics

TEXT = "x" * 100_000


def test_all_requests_together_stay_within_the_budget() -> None:
    budget = Budget(100)
    one, other = Share(budget), Share(budget)
    one.add(60)
    with pytest.raises(UnavailableError) as caught:
        other.add(41)
    assert caught.value.retry_after_s == 1
    other.add(40)
    one.release()
    other.add(60)
    other.release()
    assert budget.left == 100


def test_a_request_that_needs_more_than_the_budget_is_too_large() -> None:
    """Such a request is not asked to try again, because that would never help."""
    share = Share(Budget(100))
    share.add(60)
    with pytest.raises(TooLargeError, match="maxHeldBytes"):
        share.add(41)


def test_a_released_share_refuses_further_bytes() -> None:
    """A thread that still decodes audio when the client has left is stopped by its next call of `add`."""
    budget = Budget(100)
    share = Share(budget)
    share.release()
    with pytest.raises(UnavailableError):
        share.add(1)
    assert budget.left == 100


async def read(pieces: Sequence[bytes], budget: Budget) -> Share:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False

    async def receive() -> Message:
        return messages.pop(0)

    share = Share(budget)
    assert await BodyReader(1 << 20, 60, slots=8, refusals=Refusals()).read(receive, None, share, "a") == b"".join(
        pieces
    )
    return share


async def test_bodies_are_counted_while_they_arrive() -> None:
    budget = Budget(5000)
    held = await read([b"x" * 2000, b"x" * 1000], budget)
    assert budget.left == 2000
    with pytest.raises(UnavailableError):
        await read([b"x" * 1000, b"x" * 1000, b"x" * 1000], budget)
    held.release()


class MessagePart(Body):
    """A body of one text."""

    text: str


async def test_a_body_is_freed_before_the_answer_is_made() -> None:
    """The guard, Starlette and FastAPI hold a body only until the route has read its values."""
    gateway = Gateway(GatewaySettings(), StaticPipelines(()), Entries(), GatewayMetrics())
    messages: list[Message] = []
    lefts: list[int] = []
    guards: list[Guard] = []

    async def left() -> Response:
        lefts.append(guards[0].budget.left)
        return JSONResponse({"bytes": len(messages[0]["body"])})

    router = APIRouter(route_class=BodyRoute)

    @router.post("/v1/said")
    async def said(body: MessagePart) -> Response:
        assert body.text == TEXT
        lefts.append(guards[0].budget.left)
        return DeferredResponse(left())

    app = FastAPI()
    app.state.gateway = gateway
    app.include_router(router)

    def keep_messages(inner: ASGIApp) -> ASGIApp:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            async def kept() -> Message:
                messages.append(await receive())
                return messages[-1]

            await inner(scope, kept, send)

        return call

    guards.append(Guard(keep_messages(app), gateway, None, lambda: 1))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guards[0]), base_url="http://gateway") as client:
        answer = await client.post(
            "/v1/said", content=json.dumps({"text": TEXT}), headers={"content-type": "application/json"}
        )
    assert answer.json() == {"bytes": 0}
    total = gateway.settings.max_held_bytes
    assert lefts[0] < total - len(TEXT)
    assert lefts[1] == total
