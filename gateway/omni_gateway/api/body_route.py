"""Routes that read a JSON body at a bounded cost, and free it as soon as its values are read.

FastAPI would parse and validate a body on the event loop, which answers nobody meanwhile, and copy each of its
problems. Starlette and FastAPI would keep the body and the parsed JSON until the answer is complete.
"""

from __future__ import annotations

import asyncio
import email.message
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from omni_gateway.api.ignored import drop_unknown
from omni_gateway.api.json_body import Hold, parse_json
from omni_gateway.context import call_of, gateway_of
from omni_gateway.settings import UnsupportedFields

INLINE_BYTES: Final = 8 << 10
"""Maximum size of a body that is read on the event loop. Larger ones are read in a thread, one after another."""
SHORT_BYTES: Final = 256 << 10
"""Maximum size of a body that does not wait for long ones."""
CHAR_BYTES: Final = 8
"""Bytes of JSON for each character that `max_prompt_chars` allows: more than an escape of six, to leave room for tools.
"""


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
    value = parse_json(body, text_bytes, hold)
    try:
        if ignored is not None:
            ignored += drop_unknown(value, model)
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in problems], body=value) from None
