"""OpenAI's client for Python in a session, and its types, which each event must fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, get_args, get_origin

import openai
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from pydantic import BaseModel

from support.processes.polling import PATIENCE_S

GA_EVENTS = frozenset(
    (
        *("session.created", "session.updated", "error", "rate_limits.updated", "response.created", "response.done"),
        *(f"input_audio_buffer.{one}" for one in ("committed", "cleared", "speech_started", "speech_stopped")),
        *(f"conversation.item.{one}" for one in ("added", "done", "retrieved", "truncated", "deleted")),
        *(f"conversation.item.input_audio_transcription.{one}" for one in ("delta", "completed", "failed")),
        *(f"response.{part}.{one}" for part in ("output_item", "content_part") for one in ("added", "done")),
        *(
            f"response.{part}.{one}"
            for part in ("output_audio", "output_audio_transcript", "output_text", "function_call_arguments")
            for one in ("delta", "done")
        ),
    )
)
"""The events that all of openai-python, openai-agents-js, LiveKit's agents and Pipecat know. Pipecat ends a call at any
other one."""
_OWN = {"id", "object", "expires_at"}
"""Fields of the session that OpenAI's servers send and the type of the request lacks."""


def _models() -> Iterator[type[BaseModel]]:
    union = get_args(RealtimeServerEvent)[0] if get_origin(RealtimeServerEvent) is Annotated else RealtimeServerEvent
    yield from get_args(union)


_BY_TYPE = {get_args(model.model_fields["type"].annotation)[0]: model for model in _models()}


def check_event(event: Mapping[str, Any]) -> None:
    """Raises AssertionError or pydantic's ValidationError if the event does not fit its type, or has other fields."""
    assert event["type"] in GA_EVENTS, event["type"]
    assert isinstance(event["event_id"], str)
    read = _BY_TYPE[event["type"]].model_validate(event, strict=True)
    others = sorted(set(_others(read)) - _OWN)
    assert not others, f"{event['type']} has fields that its type lacks: {others}"
    kind = event["type"].removeprefix("conversation.item.input_audio_transcription.")
    # What the schemas of openai-agents-js 0.20 demand beyond these types: it drops other events.
    if kind == "completed":
        usage = event["usage"]
        wanted = {"seconds"} if usage["type"] == "duration" else {"input_token_details", "total_tokens"}
        assert wanted <= set(usage)
    if kind in ("failed", "rate_limits.updated"):
        values = [value for one in event.get("rate_limits", [event.get("error", {})]) for value in one.values()]
        assert None not in values


def _others(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _others(getattr(value, name))
    elif isinstance(value, list):
        for one in value:
            yield from _others(one)


def check_order(events: list[dict[str, Any]]) -> None:
    """Checks the order of the events of each response, as LiveKit's agents rely on it."""
    opened: dict[str, list[str]] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.created":
            assert event["response"]["id"] not in opened
            opened[event["response"]["id"]] = []
        elif kind == "response.done":
            assert opened.pop(event["response"]["id"]) == [], "an item was not ended"
            assert event["response"]["usage"]["input_token_details"]["cached_tokens_details"] is not None
            assert "status_details" in event["response"]
        elif kind == "response.output_item.added":
            opened[event["response_id"]].append(event["item"]["id"])
        elif kind == "response.output_item.done":
            opened[event["response_id"]].remove(event["item"]["id"])
        elif kind.startswith("response."):
            assert event["item_id"] in opened[event["response_id"]], f"{kind} outside of its item"


class Caller:
    """OpenAI's client in a session."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []

    async def until(self, kind: str) -> dict[str, Any]:
        """Returns the next event of a kind."""
        while (event := await self.next())["type"] != kind:
            pass
        check_order(self.events)
        return event

    async def next(self) -> dict[str, Any]:
        """Returns the next event."""
        async with asyncio.timeout(PATIENCE_S):
            event: dict[str, Any] = json.loads(await self.connection.recv_bytes())
        check_event(event)
        self.events.append(event)
        return event


@asynccontextmanager
async def call(url: str, key: str = "none", model: str = "m") -> AsyncIterator[Caller]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
    async with client.realtime.connect(model=model) as connection:
        caller = Caller(connection)
        await caller.until("session.created")
        yield caller
