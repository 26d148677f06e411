"""One session: what each event of the client, of the pipeline and of the turn detection changes. Pure.

Each method returns effects in order: events to send, and work that the socket's side does, whose result comes back as
a call of another method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from omni_gateway.errors import GatewayError, InvalidRequestError, TooLargeError, answer_error
from omni_gateway.realtime.state import client_events as events
from omni_gateway.realtime.state.config import REALTIME, Abilities, first_config, merge, read_kind, view_session
from omni_gateway.realtime.state.early import EarlyAnswer, EarlyAnswers
from omni_gateway.realtime.state.effects import Ask, Effect, Heard, Listen, Release, Send, Stop, Transcribe, view_heard
from omni_gateway.realtime.state.input_buffer import InputBuffer
from omni_gateway.realtime.state.items import Content, Conversation, Item, read_item, view_added
from omni_gateway.realtime.state.prompt import Prompt, build_prompt
from omni_gateway.realtime.state.response import Ended, Failed, Output, Response, Wrote
from omni_gateway.realtime.state.turns import Began, Hesitated, Paused, Turn

MIN_COMMIT_MS: Final = 100
"""Least audio of an item, as with OpenAI."""
IDLE_MS: Final = 1000
"""Audio that is kept while nobody speaks, beside prefix_padding_ms."""
MAX_RESPONSES: Final = 8
"""Maximum number of responses at once: one of the conversation, the others out of band."""
NO_WISHES: Final[Mapping[str, Any]] = {}


class Session:
    """The state of one session."""

    def __init__(
        self,
        abilities: Abilities,
        make: Callable[[str], str],
        *,
        expires_at: int,
        max_bytes: int,
        wishes: Mapping[str, Any] = NO_WISHES,
    ) -> None:
        """make: returns a new id with a prefix. expires_at: seconds since the epoch. max_bytes: of what it holds.
        wishes: the session that the client was given, as session.update has it. Raises InvalidRequestError."""
        self.abilities = abilities
        self._make = make
        self._expires_at = expires_at
        self._max_bytes = max_bytes
        self.id = make("sess")
        self.kind = read_kind(wishes)
        self.config = first_config(abilities, wishes)
        self.conversation = Conversation()
        self.buffer = InputBuffer(self.config.audio.input.format)
        self._conversation_id = make("conv")
        self._responses: dict[str, Response] = {}
        self._speech_item: str | None = None
        """Id of the item that the user speaks at the moment."""
        self._early = EarlyAnswers()
        self._waits = False
        """Whether a turn of the user waits for the end of a response that it may not interrupt."""
        self._pace: float | None = None
        self._items_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Memory of the items and the input buffer."""
        return self._items_bytes + len(self.buffer) + self._early.held_bytes

    @property
    def is_busy(self) -> bool:
        """Whether a response is generated or the user speaks."""
        return bool(self._responses) or self._speech_item is not None or self._waits

    def open(self) -> list[Effect]:
        """Returns the effects of a new session."""
        return [Send({"type": "session.created", "session": self.view()})]

    def receive(self, event: events.ClientEvent) -> list[Effect]:
        """Returns the effects of a client's event. An error of the client is one of them."""
        found: list[Effect] = []
        try:
            for effect in self._receive(event):
                found.append(effect)
        except GatewayError as error:
            found.append(self.refuse(error, event.event_id))
        return found

    def refuse(self, error: GatewayError, event_id: str | None) -> Send:
        """Returns the event that reports an error. event_id: of the client's event that caused it."""
        described = answer_error(error).body["error"]
        return Send({"type": "error", "error": {**described, "event_id": event_id}})

    def turn(self, turn: Turn) -> list[Effect]:
        """Returns the effects of the begin, a pause or the end of a user's turn."""
        if isinstance(turn, Began):
            return list(self._begin_turn(turn))
        if isinstance(turn, Hesitated):
            return list(self._begin_early(turn.audio_ms))
        return list(self._end_turn(turn.audio_ms) if isinstance(turn, Paused) else self._early.drop())

    def answer(self, response_id: str, output: Output) -> list[Effect]:
        """Returns the effects of what the pipeline returned for a response."""
        response = self._responses.get(response_id)
        if response is None:
            return []
        if isinstance(output, Wrote):
            output.audio.text = output.audio.text or output.text
            self._recount()
            return []
        found: list[Effect] = []
        try:
            for event in response.add(output, self._append):
                found.append(Send(event))
        except InvalidRequestError as error:  # the conversation takes no further item
            output = Failed(error.type, error.specific_code or error.code, error.message)
            found += [Stop(response.id), *_send(response.add(output, self._append))]
        if isinstance(output, Ended | Failed):
            found += self._end_response(response)
        return found

    def shorten(self, response_id: str) -> Prompt | None:
        """Returns the prompt of a response without the oldest turns, because it was too long for the model; None if
        that may not be, or if there is no older turn."""
        response = self._responses.get(response_id)
        if response is None or response.items or not self.conversation.leave_out(response.keep_less()):
            return None
        return build_prompt(response.config, self.conversation.kept, self.abilities.model)

    def transcribe(self, item_id: str, heard: Heard) -> list[Effect]:
        """Returns the effects of what the pipeline wrote down."""
        if heard.usage is not None:
            for item in self.conversation.items:
                if item.id == item_id and item.content:
                    item.content[0].text = heard.text
            self._recount()
        return [Send(view_heard(item_id, heard))]

    def _receive(self, event: events.ClientEvent) -> Iterator[Effect]:
        if not isinstance(event, events.Append | events.RetrieveItem):
            yield from self._early.drop()
        if isinstance(event, events.Append):
            yield from self._append_audio(event)
        elif isinstance(event, events.SessionUpdate):
            yield from self._update(event)
        elif isinstance(event, events.Commit):
            yield from self._commit()
        elif isinstance(event, events.Clear):
            self.buffer.clear()
            self._speech_item = None
            yield Send({"type": "input_audio_buffer.cleared"})
        elif isinstance(event, events.CreateItem):
            yield from self._create_item(event)
        elif isinstance(event, events.RetrieveItem):
            item = self.conversation.find(event.item_id, "item_retrieve_invalid_item_id")
            yield Send({"type": "conversation.item.retrieved", "item": item.view(with_audio=True)})
        elif isinstance(event, events.TruncateItem):
            yield from self._truncate(event)
        elif isinstance(event, events.DeleteItem):
            item = self.conversation.find(event.item_id, "item_delete_invalid_item_id")
            self.conversation.items.remove(item)
            self._recount()
            yield Send({"type": "conversation.item.deleted", "item_id": item.id})
        elif isinstance(event, events.CreateResponse):
            yield from self._create_response(event.response or {})
        elif isinstance(event, events.CancelResponse):
            yield from self._cancel(event.response_id)

    def _update(self, event: events.SessionUpdate) -> Iterator[Effect]:
        if event.session.get("type") and read_kind(event.session) != self.kind:
            raise InvalidRequestError(
                f"session.type is {self.kind!r} in this session and stays so; for transcripts alone connect with "
                "?intent=transcription.",
                param="session.type",
            )
        self.config = merge(self.config, event.session, self.abilities, "session")
        format = self.buffer.format
        self.buffer.use_format(self.config.audio.input.format)
        if self.config.audio.input.turn_detection is None or self.buffer.format != format:
            self._speech_item = None
        yield Send({"type": "session.updated", "session": self.view()})

    def _append_audio(self, event: events.Append) -> Iterator[Effect]:
        self._check_hears("audio")
        data = event.audio
        if len(self.buffer) + len(data) > self._max_bytes:
            raise TooLargeError(
                f"The input buffer would hold more than {self._max_bytes} bytes, the limit; commit or clear it.",
                param="audio",
            )
        start_ms = self.buffer.end_ms
        self.buffer.append(data)
        detection = self.config.audio.input.turn_detection
        if detection is None:
            return
        if self._speech_item is None:
            self.buffer.drop_before(start_ms - detection.prefix_padding_ms - IDLE_MS)
        yield Listen(data, start_ms, detection)

    def _commit(self) -> Iterator[Effect]:
        if self.buffer.milliseconds < MIN_COMMIT_MS:
            raise InvalidRequestError(
                f"The input buffer has {self.buffer.milliseconds:.0f} ms of audio, at least {MIN_COMMIT_MS} ms are "
                "needed.",
                code="input_audio_buffer_commit_empty",
            )
        item_id, self._speech_item = self._speech_item or self._make("item"), None
        yield from self._add_speech(self._make_speech(item_id, self.buffer.take()))

    def _make_speech(self, item_id: str, data: bytes) -> Item:
        return Item(item_id, "message", "user", [Content("input_audio", audio=data, format=self.buffer.format)])

    def _add_speech(self, item: Item) -> Iterator[Effect]:
        previous = self._append(item)
        yield Send({"type": "input_audio_buffer.committed", "item_id": item.id, "previous_item_id": previous})
        yield from _send(view_added(item, previous))
        settings = self.config.audio.input.transcription
        if settings is not None:
            yield Transcribe(item.id, item.content[0], settings)

    def _begin_turn(self, turn: Began) -> Iterator[Effect]:
        detection = self.config.audio.input.turn_detection
        if detection is None or self._speech_item is not None:
            return
        self.buffer.drop_before(turn.audio_ms)
        self._speech_item = self._make("item")
        self._early.count = 0
        # Not turn.audio_ms: the padding may reach into the turn before, whose item has that audio.
        started = {"audio_start_ms": round(self.buffer.start_ms), "item_id": self._speech_item}
        yield Send({"type": "input_audio_buffer.speech_started", **started})
        response = self._active()
        if detection.interrupt_response and response is not None:
            yield from self._cancel_response(response, "turn_detected")

    def _begin_early(self, end_ms: int) -> Iterator[Effect]:
        detection, item_id = self.config.audio.input.turn_detection, self._speech_item
        answers = detection is not None and detection.create_response and self.kind == REALTIME
        if answers and item_id is not None and self._active() is None:
            item = self._make_speech(item_id, self.buffer.peek(end_ms))
            prompt = build_prompt(self.config, [*self.conversation.kept, item], self.abilities.model)
            response = Response(self._make("resp"), self.config, self._make, self._conversation_id, None)
            yield from self._early.begin(EarlyAnswer(response, item, end_ms, prompt))

    def _end_turn(self, end_ms: int) -> Iterator[Effect]:
        detection = self.config.audio.input.turn_detection
        item_id, self._speech_item = self._speech_item, None
        if detection is None or item_id is None:
            return
        early = self._early.answer
        item = early.item if early else self._make_speech(item_id, self.buffer.take(end_ms))
        self.buffer.drop_before(end_ms)
        # The end of the audio that the model gets.
        stopped = {"audio_end_ms": early.end_ms if early else end_ms, "item_id": item_id}
        yield Send({"type": "input_audio_buffer.speech_stopped", **stopped})
        try:
            yield from self._add_speech(item)
            answers = detection.create_response and self.kind == REALTIME
            if answers and self._active() is None:
                prompt = build_prompt(self.config, self.conversation.kept, self.abilities.model)
                if (response := self._early.take(prompt)) is None:
                    yield from self._create_response({})
                else:
                    self._responses[response.id] = response
                    yield from _send(response.begin())
                    yield Release(response.id)
            else:
                self._waits = answers
        except GatewayError as error:
            yield self.refuse(error, None)
        yield from self._early.drop()

    def _create_item(self, event: events.CreateItem) -> Iterator[Effect]:
        place = self.conversation.place_behind(event.previous_item_id)
        item = self._read_item(event.item, "item")
        if self.held_bytes + item.held_bytes > self._max_bytes and not self._make_place(item.held_bytes):
            raise InvalidRequestError(
                f"The session would hold more than {self._max_bytes} bytes, the limit; delete items, or send less.",
                param="item",
                code="conversation_too_large",
            )
        previous = self.conversation.insert(item, place)
        self._recount()
        yield from _send(view_added(item, previous))

    def _make_place(self, size: int) -> bool:
        self.conversation.forget_audio(max(0, self._max_bytes - size - len(self.buffer)))
        self._recount()
        return self.held_bytes + size <= self._max_bytes

    def _read_item(self, given: Mapping[str, Any], param: str) -> Item:
        item = read_item(given, self._make("item"), self.config.audio.input.format, self._max_bytes, param)
        if any(one.audio for one in item.content):
            self._check_hears(f"{param}.content")
        return item

    def _check_hears(self, param: str) -> None:
        if not self.abilities.facts.hears:
            raise InvalidRequestError(f"The model {self.abilities.model!r} does not hear audio.", param=param)

    def _truncate(self, event: events.TruncateItem) -> Iterator[Effect]:
        item = self.conversation.find(event.item_id, "item_truncate_invalid_item_id")
        if event.content_index != 0:
            raise InvalidRequestError("An answer has one content: content_index is 0.", param="content_index")
        end_ms = item.truncate(event.audio_end_ms, self._pace)
        self._recount()
        place = {"item_id": item.id, "content_index": 0, "audio_end_ms": end_ms}
        yield Send({"type": "conversation.item.truncated", **place})

    def _create_response(self, given: Mapping[str, Any]) -> Iterator[Effect]:
        if self.kind != REALTIME:
            raise InvalidRequestError(f"A session of type {self.kind!r} has no responses.", param="type")
        where = given.get("conversation", "auto")
        in_band = where in (None, "auto", self._conversation_id)
        if not in_band and where != "none":
            raise InvalidRequestError("response.conversation is auto or none.", param="response.conversation")
        active = self._active()
        if in_band and active is not None:
            raise InvalidRequestError(
                f"Conversation already has an active response in progress: {active.id}. Wait until the response is "
                "finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        if len(self._responses) >= MAX_RESPONSES:
            raise InvalidRequestError(f"{MAX_RESPONSES} responses are in progress, the limit; wait for one to end.")
        config = merge(self.config, given, self.abilities, "response")
        metadata = events.read_metadata(given.get("metadata"))
        prompt = build_prompt(config, list(self._read_input(given.get("input"))), self.abilities.model)
        if not prompt.body["messages"]:
            raise InvalidRequestError("There is nothing to answer: create an item or give instructions.", param="input")
        conversation = self._conversation_id if in_band else None
        response = Response(self._make("resp"), config, self._make, conversation, metadata)
        if given.get("input") is not None:
            response.retained = None
        self._responses[response.id] = response
        yield from _send(response.begin())
        yield Ask(response.id, prompt, config)

    def _read_input(self, given: Any) -> Iterable[Item]:
        if given is None:
            return self.conversation.kept
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise InvalidRequestError("response.input is a list of items.", param="response.input", code="invalid_type")
        code = "item_retrieve_invalid_item_id"
        return [
            self.conversation.find(str(one.get("id")), code, f"response.input[{place}].id")
            if one.get("type") == "item_reference"
            else self._read_item(one, f"response.input[{place}]")
            for place, one in enumerate(given)
        ]

    def _cancel(self, response_id: str | None) -> Iterator[Effect]:
        response = self._active() if response_id is None else self._responses.get(response_id)
        if response is None:
            raise InvalidRequestError(
                "Cancellation failed: no active response found", code="response_cancel_not_active"
            )
        yield from self._cancel_response(response, "client_cancelled")

    def _cancel_response(self, response: Response, reason: str) -> Iterator[Effect]:
        yield Stop(response.id)
        yield from _send(response.cancel(reason))
        yield from self._end_response(response)

    def _end_response(self, response: Response) -> Iterator[Effect]:
        del self._responses[response.id]
        for item in response.items:
            if item.spoken is None:
                continue
            self._pace = item.spoken.pace or self._pace
            item.cut(self._pace)
        self._recount()
        if self._waits and self._active() is None:
            self._waits = False
            try:
                yield from self._create_response({})
            except GatewayError as error:
                yield self.refuse(error, None)

    def _active(self) -> Response | None:
        """Returns the conversation's response that is in progress."""
        return next((one for one in self._responses.values() if one.in_conversation), None)

    def _append(self, item: Item) -> str | None:
        previous = self.conversation.insert(item)
        self.conversation.forget_audio(max(0, self._max_bytes - len(self.buffer)))
        self._recount()
        return previous

    def _recount(self) -> None:
        self._items_bytes = self.conversation.held_bytes

    def view(self) -> dict[str, Any]:
        """Returns the session as clients see it."""
        return view_session(self.config, self.kind, self.id, self.abilities.model, self._expires_at)


def _send(found: Iterable[dict[str, Any]]) -> Iterator[Effect]:
    return (Send(event) for event in found)
