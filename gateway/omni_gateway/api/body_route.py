"""Routes that read a JSON body at a bounded cost, and free it as soon as its values are read. Fields that are hints, or
unknown ones if the setting unsupportedFields is Ignore, are left out.

FastAPI would parse and validate a body on the event loop, which answers nobody meanwhile, and copy each of its
problems. Starlette and FastAPI would keep the body and the parsed JSON until the answer is complete.
"""

from __future__ import annotations

import asyncio
import email.message
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from omni_gateway.context import Call, Gateway, call_of, gateway_of
from omni_gateway.errors import UnsupportedError
from omni_gateway.openai.body import UnsupportedValue, Without
from omni_gateway.openai.json_body import Hold, join_keys, parse_json
from omni_gateway.settings import UnsupportedFields

INLINE_BYTES: Final = 8 << 10
"""Maximum size of a body that is read on the event loop. Larger ones are read in a thread, one after another."""
SHORT_BYTES: Final = 256 << 10
"""Maximum size of a body that does not wait for long ones."""
CHAR_BYTES: Final = 8
"""Bytes of JSON for each character that `max_prompt_chars` allows: more than an escape of six, to leave room for tools.
"""
NEEDED: Final = frozenset(
    (
        *("documents", "continue_final_message", "prefix", "partial", "prompt_embeds"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids", "bad_words"),
        *("guardrails", "safe_prompt", "safety_settings", "moderation"),
    )
)
"""Unknown fields that are refused nevertheless: without them, the model reads another conversation, or an answer lacks
a form or a protection on which the client relies."""
NEEDED_OF_BODY: Final = frozenset(
    (
        *("system", "system_prompt", "system_instruction", "instructions", "prompt", "input", "contents"),
        *("chat_template", "truncate_prompt_tokens"),
        *("format", "grammar", "json_schema", "regex", "ebnf", "structural_tag", "guided_decoding"),
    )
)
"""The same for fields of the body itself, by the names of other servers' APIs: of Anthropic, Gemini, OpenAI's
Responses, vLLM, SGLang, llama.cpp and Ollama. Inside messages and parts these names are labels."""


class _OnceRequest(Request):
    """A request whose body can be read once. The guard passes it on in one piece, as a bytearray."""

    value: BaseModel

    async def body(self) -> bytes:
        """Returns the body, which is empty once its values are read."""
        if not hasattr(self, "_body"):
            self._body = cast(bytes, (await self.receive())["body"])
        return self._body

    async def json(self) -> Any:
        """Returns the value, as an instance of the route's model, which FastAPI passes on as it is."""
        return self.value


class BodyRoute(APIRoute):
    """A route that keeps neither the body nor its values once it has returned its response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the function that handles a request."""
        handler = super().get_route_handler()
        model = None if self.body_field is None else self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            once = _OnceRequest(request.scope, request.receive)
            body = await once.body()
            if body and is_json(request.headers.get("content-type")):
                # FastAPI only asks whether there is a body.
                once._body = b"{}"
                once.value = await _read(request, cast(bytearray, body), cast(type[BaseModel], model))
            response = await handler(once)
            call_of(request).body_share.release()
            return response

        return handle


def is_json(content_type: str | None) -> bool:
    """Returns whether FastAPI takes a body of this type for JSON."""
    message = email.message.Message()
    message["content-type"] = content_type or ""
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


async def _read(request: Request, body: bytearray, model: type[BaseModel]) -> BaseModel:
    gateway, call = gateway_of(request), call_of(request)
    most, hold = CHAR_BYTES * gateway.settings.max_prompt_chars, call.body_share.add
    ignored = call.ignored if gateway.settings.unsupported_fields is UnsupportedFields.IGNORE else None
    try:
        if len(body) <= INLINE_BYTES:
            return read_model(body, model, most, hold, ignored)
        async with gateway.reading[len(body) > SHORT_BYTES]:
            return await asyncio.to_thread(read_model, body, model, most, hold, ignored)
    finally:
        body.clear()


def read_model(
    body: bytes | bytearray, model: type[BaseModel], text_bytes: int, hold: Hold, ignored: list[str] | None = None
) -> BaseModel:
    """Returns the validated value of a body. Raises RequestValidationError, and the errors of parse_json.

    ignored: gets the paths of unknown fields; None: they are refused.
    """
    return validate_body(parse_json(body, text_bytes, hold), model, ignored)


def validate_body(value: Any, model: type[BaseModel], ignored: list[str] | None = None) -> BaseModel:
    """Returns the validated value of a body. Raises RequestValidationError. ignored: see read_model."""
    try:
        if ignored is not None:
            ignored += drop_unknown(value, model)
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in problems], body=value) from None


def check_unsupported(gateway: Gateway, call: Call, found: Iterable[UnsupportedValue]) -> None:
    """Note the values that are ignored. Raises UnsupportedError for the first one that is not."""
    lenient = gateway.settings.unsupported_fields is UnsupportedFields.IGNORE
    for one in found:
        if one.without is Without.HINT or (lenient and one.without is Without.MEANING):
            call.ignored.append(one.path)
        else:
            raise UnsupportedError(f"{one.why}.", param=one.path)


def drop_unknown(body: Any, model: type[BaseModel]) -> list[str]:
    """Removes from a body the fields that the model does not know. Returns their paths.

    Raises pydantic's ValidationError for a body with other problems, so that the error is not about an unknown field.
    """
    return list(_drop_unknown((), body, model.model_validate(body, from_attributes=True, extra="ignore")))


def _drop_unknown(keys: tuple[str | int, ...], body: Any, read: Any) -> Iterator[str]:
    if isinstance(body, list) and isinstance(read, list | tuple):
        for place, (item, known) in enumerate(zip(body, read, strict=True)):
            yield from _drop_unknown((*keys, place), item, known)
    elif isinstance(body, dict) and isinstance(read, BaseModel):
        known = {field.alias or name: name for name, field in type(read).model_fields.items()}
        for name in list(body):
            if name in known:
                yield from _drop_unknown((*keys, name), body[name], getattr(read, known[name]))
            elif body[name] is not None and name not in NEEDED and (keys or name not in NEEDED_OF_BODY):
                del body[name]
                yield join_keys((*keys, name))
