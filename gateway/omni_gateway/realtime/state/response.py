"""One response: what the pipeline returns, as OpenAI's events in their order. Pure.

response.created
  response.output_item.added, conversation.item.added, response.content_part.added
    response.output_audio_transcript.delta and response.output_audio.delta, or response.output_text.delta
  ... .done, response.content_part.done, response.output_item.done, conversation.item.done
response.done
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omni_gateway.realtime.state.config import RETAINED, Config, view_output
from omni_gateway.realtime.state.heard import Spoken
from omni_gateway.realtime.state.items import Content, Item

MAX_OUTPUTS: Final = 128
"""Maximum number of output items; further calls of functions are dropped."""


@dataclass(frozen=True, slots=True)
class Said:
    """The pipeline returned a piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Spoke:
    """The pipeline returned a piece of the answer's audio."""

    data: bytes
    """In the response's output format."""
    milliseconds: float
    words: Sequence[tuple[float, int]] = ()
    """The words that end in it; see Spoken.add_audio."""


@dataclass(frozen=True, slots=True)
class Called:
    """The pipeline returned a piece of a call of a function."""

    index: int
    """Number of the call in the answer."""
    id: str
    """Id of the call; only in its first piece."""
    name: str
    """Only in its first piece."""
    arguments: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The pipeline has answered."""

    usage: Mapping[str, Any]
    """As read_usage returns it."""
    is_cut: bool
    """Whether a stage reached its maximum length."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The pipeline did not answer."""

    type: str
    code: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """The pipeline, whose entry writes down what it hears, wrote down the audio of the prompt's last message."""

    audio: Content
    text: str


Output = Said | Spoke | Called | Wrote | Ended | Failed
Make = Callable[[str], str]
"""Returns a new id with this prefix."""


@dataclass(slots=True)
class _Open:
    """An output item that is being generated."""

    item: Item
    index: int
    previous: str | None
    """Id of the item before it in the conversation."""
    parts: list[str] = field(default_factory=list)
    """Pieces of its text or its arguments."""


class Response:
    """One response."""

    def __init__(
        self, id: str, config: Config, make: Make, conversation_id: str | None, metadata: Mapping[str, str] | None
    ) -> None:
        """conversation_id: None for a response whose items no conversation gets."""
        self.id = id
        self.config = config
        self.items: list[Item] = []
        self.is_done = False
        self.retained = config.retained
        """Share of the conversation that is kept if it is too long; None: all of it, and the response fails."""
        self._make = make
        self._conversation_id = conversation_id
        self._metadata = dict(metadata) if metadata else None
        self._open: dict[int | None, _Open] = {}
        """By the number of the call; None for the message."""

    @property
    def in_conversation(self) -> bool:
        """Whether the conversation gets the items."""
        return self._conversation_id is not None

    def keep_less(self) -> float | None:
        """Returns which share of the conversation is kept, because it is too long; None: all of it. Later ones are not
        larger than RETAINED, so that few calls find out what fits."""
        share, self.retained = self.retained, self.retained and min(self.retained, RETAINED)
        return share

    def begin(self) -> Iterator[dict[str, Any]]:
        """Yields the first event."""
        yield {"type": "response.created", "response": self._view("in_progress")}

    def add(self, output: Output, previous: Callable[[Item], str | None]) -> Iterator[dict[str, Any]]:
        """Yields the events of what the pipeline returned.

        previous: adds a new item to the conversation, and returns the id of the item before it.
        """
        if isinstance(output, Said):
            if output.text:
                yield from self._say(output.text, previous)
        elif isinstance(output, Spoke):
            yield from self._speak(output, previous)
        elif isinstance(output, Called):
            yield from self._call(output, previous)
        elif isinstance(output, Ended):
            cut = {"type": "incomplete", "reason": "max_output_tokens"} if output.is_cut else None
            status = "incomplete" if output.is_cut else "completed"
            yield from self._finish(status, cut, view_usage(output.usage))
        elif isinstance(output, Failed):
            error = {"type": output.type, "code": output.code, "message": output.message}
            yield from self._finish("failed", {"type": "failed", "error": error}, view_usage({}))

    def cancel(self, reason: str) -> Iterator[dict[str, Any]]:
        """Yields the events of an early end. reason: turn_detected or client_cancelled."""
        yield from self._finish("cancelled", {"type": "cancelled", "reason": reason}, view_usage({}))

    def _say(self, text: str, previous: Callable[[Item], str | None]) -> Iterator[dict[str, Any]]:
        yield from self._open_message(previous)
        opened = self._open[None]
        opened.parts.append(text)
        if opened.item.spoken is not None:
            opened.item.spoken.text += text
        kind = "output_audio_transcript" if self.config.speaks else "output_text"
        yield self._part(f"response.{kind}.delta", opened, delta=text)

    def _speak(self, output: Spoke, previous: Callable[[Item], str | None]) -> Iterator[dict[str, Any]]:
        if not self.config.speaks:
            return
        yield from self._open_message(previous)
        opened = self._open[None]
        if opened.item.spoken is not None:
            opened.item.spoken.add_audio(output.milliseconds, output.words)
        if output.data:
            delta = base64.b64encode(output.data).decode()
            yield self._part("response.output_audio.delta", opened, delta=delta)

    def _call(self, output: Called, previous: Callable[[Item], str | None]) -> Iterator[dict[str, Any]]:
        if output.index not in self._open:
            if len(self.items) >= MAX_OUTPUTS:
                return
            item = Item(self._make("item"), "function_call", status="in_progress")
            item.call_id, item.name = output.id or self._make("call"), output.name
            yield from self._add_item(output.index, item, previous)
        opened = self._open[output.index]
        if output.arguments:
            opened.parts.append(output.arguments)
            yield self._event(
                "response.function_call_arguments.delta", opened, call_id=opened.item.call_id, delta=output.arguments
            )

    def _open_message(self, previous: Callable[[Item], str | None]) -> Iterator[dict[str, Any]]:
        if None in self._open:
            return
        item = Item(self._make("item"), "message", "assistant", status="in_progress")
        item.spoken = Spoken() if self.config.speaks else None
        yield from self._add_item(None, item, previous)
        # Its text comes with the end, so that a prompt never has half a message.
        item.content = [Content("output_audio" if self.config.speaks else "output_text")]
        yield self._part("response.content_part.added", self._open[None], part=self._view_part(""))

    def _add_item(
        self, key: int | None, item: Item, previous: Callable[[Item], str | None]
    ) -> Iterator[dict[str, Any]]:
        before = previous(item) if self.in_conversation else None
        opened = self._open[key] = _Open(item, len(self.items), before)
        self.items.append(item)
        shown = item.view()
        added = {"response_id": self.id, "output_index": opened.index, "item": shown}
        yield {"type": "response.output_item.added", **added}
        if self.in_conversation:
            yield {"type": "conversation.item.added", "previous_item_id": before, "item": shown}

    def _finish(
        self, status: str, details: Mapping[str, Any] | None, usage: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        if self.is_done:
            return
        self.is_done = True
        whole = status == "completed"
        for opened in self._open.values():
            item = opened.item
            item.status = "completed" if whole else "incomplete"
            text = "".join(opened.parts)
            if item.type == "message":
                yield from self._end_message(opened, text, whole)
            else:
                item.arguments = text
                called = {"call_id": item.call_id, "name": item.name, "arguments": text}
                yield self._event("response.function_call_arguments.done", opened, **called)
            shown = item.view()
            yield {
                "type": "response.output_item.done",
                "response_id": self.id,
                "output_index": opened.index,
                "item": shown,
            }
            if self.in_conversation:
                yield {"type": "conversation.item.done", "previous_item_id": opened.previous, "item": shown}
        yield {"type": "response.done", "response": self._view(status, details, usage)}

    def _end_message(self, opened: _Open, text: str, whole: bool) -> Iterator[dict[str, Any]]:
        item = opened.item
        item.content[0].text = text
        if item.spoken is not None:
            item.spoken.complete = whole
            yield self._part("response.output_audio.done", opened)
            yield self._part("response.output_audio_transcript.done", opened, transcript=text)
        else:
            yield self._part("response.output_text.done", opened, text=text)
        yield self._part("response.content_part.done", opened, part=self._view_part(text))

    def _event(self, kind: str, opened: _Open, **fields: Any) -> dict[str, Any]:
        place = {"response_id": self.id, "item_id": opened.item.id, "output_index": opened.index}
        return {"type": kind, **place, **fields}

    def _part(self, kind: str, opened: _Open, **fields: Any) -> dict[str, Any]:
        return self._event(kind, opened, content_index=0, **fields)

    def _view_part(self, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if self.config.speaks else {"type": "text", "text": text}

    def _view(
        self, status: str, details: Mapping[str, Any] | None = None, usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        output = {name: value for name, value in view_output(self.config).items() if name != "speed"}
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [] if usage is None else [one.view() for one in self.items],
            "conversation_id": self._conversation_id,
            "output_modalities": list(self.config.output_modalities),
            "max_output_tokens": self.config.max_output_tokens,
            "audio": {"output": output},
            "metadata": self._metadata,
            "usage": usage,
        }


def view_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the usage of a response as clients see it. usage: as read_usage returns it; empty for none.

    Which tokens of the prompt were audio is not known, so all count as text.
    """
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    details = usage.get("completion_tokens_details") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "total_tokens": prompt + completion,
        "input_tokens": prompt,
        "output_tokens": completion,
        "input_token_details": {
            "text_tokens": prompt,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {
            "text_tokens": details.get("text_tokens", completion),
            "audio_tokens": details.get("audio_tokens", 0),
        },
    }
