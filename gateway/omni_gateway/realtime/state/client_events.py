"""The events that a client sends, with OpenAI's field names. Other fields are ignored; null means absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator, ConfigDict, Field

from omni_gateway.api.body_route import CHAR_BYTES, validate_body
from omni_gateway.api.errors import describe_validation
from omni_gateway.errors import GatewayError, InvalidRequestError
from omni_gateway.media.read import decode_base64
from omni_gateway.openai.body import Body
from omni_gateway.openai.json_body import Hold, parse_json

MAX_AUDIO_BYTES: Final = 16 << 20
"""Maximum audio of one event. A message of the WebSocket is not larger."""
MAX_METADATA: Final = (16, 64, 512)
"""Maximum number of entries, and of characters of a key and of a value."""
Id = Annotated[str, Field(min_length=1, max_length=512)]


class ClientEvent(Body):
    """Base of the events."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    event_id: Annotated[str, Field(max_length=512)] | None = None
    """The client's name of the event, which an error about it repeats."""


class SessionUpdate(ClientEvent):
    """Changes the session."""

    session: dict[str, Any]


def _decode(value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequestError("audio is base64, as a text.", param="audio", code="invalid_type")
    return decode_base64(value, param="audio", max_bytes=MAX_AUDIO_BYTES) if value else b""


class Append(ClientEvent):
    """Adds audio to the input buffer."""

    audio: Annotated[bytes, BeforeValidator(_decode)]
    """In the session's input format. It is sent in base64; "" adds nothing."""


class Commit(ClientEvent):
    """Makes the input buffer an item."""


class Clear(ClientEvent):
    """Empties the input buffer."""


class CreateItem(ClientEvent):
    """Adds an item to the conversation."""

    item: dict[str, Any]
    previous_item_id: Id | None = None
    """The item behind which it comes, or "root" for the first place. Default: the last item."""


class RetrieveItem(ClientEvent):
    """Asks for an item."""

    item_id: Id


class TruncateItem(ClientEvent):
    """Cuts an answer to what the user has heard of it."""

    item_id: Id
    content_index: int = 0
    audio_end_ms: Annotated[int, Field(ge=0)]


class DeleteItem(ClientEvent):
    """Removes an item."""

    item_id: Id


class CreateResponse(ClientEvent):
    """Asks for an answer."""

    response: dict[str, Any] | None = None


class CancelResponse(ClientEvent):
    """Ends an answer early."""

    response_id: Id | None = None


TYPES: Final[dict[str, type[ClientEvent]]] = {
    "session.update": SessionUpdate,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Commit,
    "input_audio_buffer.clear": Clear,
    "conversation.item.create": CreateItem,
    "conversation.item.retrieve": RetrieveItem,
    "conversation.item.truncate": TruncateItem,
    "conversation.item.delete": DeleteItem,
    "response.create": CreateResponse,
    "response.cancel": CancelResponse,
}


class EventError(Exception):
    """An event that cannot be read."""

    def __init__(self, error: GatewayError, event_id: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.event_id = event_id


def read_event(text: str, max_chars: int, hold: Hold) -> ClientEvent:
    """Returns an event. max_chars: characters that it may have besides audio. hold: see parse_json.

    Raises EventError, and the errors of hold.
    """
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"), CHAR_BYTES * max_chars, hold)
    except InvalidRequestError as error:
        raise EventError(error, None) from error
    if not isinstance(value, dict):
        raise EventError(InvalidRequestError("An event is a JSON object.", code="invalid_json"), None)
    given = value.get("event_id")
    event_id = given[:512] if isinstance(given, str) else None
    if (kind := value.get("type")) is None:
        missing = InvalidRequestError("An event has a 'type'.", param="type", code="missing_required_parameter")
        raise EventError(missing, event_id)
    model = TYPES.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(TYPES)
        shown = repr(kind)[:128]
        raise EventError(InvalidRequestError(f"type is {shown}; use one of {known}.", param="type"), event_id)
    try:
        return cast(ClientEvent, validate_body(value, model))
    except RequestValidationError as error:
        raise EventError(describe_validation(error), event_id) from None
    except GatewayError as error:  # audio that is no base64
        raise EventError(error, event_id) from error


def read_metadata(given: Any) -> Mapping[str, str] | None:
    """Returns the metadata of response.create. Raises InvalidRequestError."""
    if given is None:
        return None
    entries, key_chars, value_chars = MAX_METADATA
    is_right = isinstance(given, dict) and len(given) <= entries
    if not is_right or not all(
        len(key) <= key_chars and isinstance(value, str) and len(value) <= value_chars for key, value in given.items()
    ):
        raise InvalidRequestError(
            f"response.metadata has at most {entries} texts of {value_chars} characters.", param="response.metadata"
        )
    return cast(Mapping[str, str], given)
