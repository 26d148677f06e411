"""A session of the Realtime API without a socket, and what its client is sent."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Sequence
from typing import Any

from omni_gateway.entries.connections import EntryFacts
from omni_gateway.realtime.state.client_events import EventError, read_event
from omni_gateway.realtime.state.config import Abilities
from omni_gateway.realtime.state.effects import Ask, Effect, Send
from omni_gateway.realtime.state.session import Session
from support.peers.realtime_events import check_event, check_order

FACTS = EntryFacts(
    stage="thinker",
    stages=("thinker", "talker"),
    modalities=("text", "audio"),
    voices=("Chelsie", "Ethan"),
    max_model_len=4096,
    speaks_given_text=True,
    structures_text=True,
    calls_tools=True,
    answering="thinker",
    hears=True,
)
SECOND = base64.b64encode(bytes(48_000)).decode()
USAGE = {
    "prompt_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens": 5,
    "completion_tokens_details": {"text_tokens": 2, "audio_tokens": 3},
}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


class Held:
    """A session, and what its client was sent."""

    def __init__(self, facts: EntryFacts = FACTS, max_bytes: int = 1 << 20) -> None:
        numbers = itertools.count()
        abilities = Abilities("m", facts, {"alloy": "Ethan"})
        self.session = Session(abilities, lambda prefix: f"{prefix}_{next(numbers)}", expires_at=9, max_bytes=max_bytes)
        self.sent: list[dict[str, Any]] = []
        self.work: list[Effect] = []
        self.take(self.session.open())

    def take(self, effects: Sequence[Effect]) -> list[str]:
        """Keeps effects. Returns the types of the events among them, and the names of the work."""
        names = []
        for effect in effects:
            if isinstance(effect, Send):
                event = {"event_id": f"event_{len(self.sent)}", **effect.event}
                check_event(event)
                self.sent.append(event)
                names.append(event["type"])
            else:
                self.work.append(effect)
                names.append(type(effect).__name__)
        check_order(self.sent)
        return names

    def send(self, kind: str, **fields: Any) -> list[str]:
        """Passes on a client's event."""
        try:
            event = read_event(json.dumps({"type": kind, "event_id": "mine", **fields}), 100_000, lambda size: None)
        except EventError as error:
            return self.take([self.session.refuse(error.error, error.event_id)])
        return self.take(self.session.receive(event))

    def update(self, **session: Any) -> dict[str, Any]:
        """Changes the session. Returns what holds afterwards."""
        assert self.send("session.update", session={"type": "realtime", **session}) == ["session.updated"]
        found: dict[str, Any] = self.sent[-1]["session"]
        return found

    def say(self, text: str) -> None:
        """Adds a message of the user."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        assert self.send("conversation.item.create", item=item) == ["conversation.item.added", "conversation.item.done"]

    def ask(self, **response: Any) -> Ask:
        """Asks for a response. Without items, it has instructions."""
        if not self.session.conversation.items:
            response = {"instructions": "Speak.", **response}
        assert self.send("response.create", response=response) == ["response.created", "Ask"]
        asked = self.work[-1]
        assert isinstance(asked, Ask)
        return asked

    @property
    def error(self) -> dict[str, Any]:
        """The last event's error."""
        found: dict[str, Any] = self.sent[-1]["error"]
        return found
