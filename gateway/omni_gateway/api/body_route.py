"""Routes that free the body of a request as soon as its values are read.

Starlette and FastAPI keep the body and the parsed JSON until the answer is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from omni_gateway.api.context import call_of, gateway_of
from omni_gateway.api.ignored import drop_unknown
from omni_gateway.settings import UnsupportedFields


class _OnceRequest(Request):
    """A request whose body can be read once. The guard passes it on in one piece, as a bytearray."""

    model: type[BaseModel] | None = None
    """Of the body, if its unknown fields are ignored."""

    async def body(self) -> bytes:
        """Returns the body, which `json` empties."""
        if not hasattr(self, "_body"):
            self._body = cast(bytes, (await self.receive())["body"])
        return self._body

    async def json(self) -> Any:
        """Returns the parsed body. Raises JSONDecodeError, which FastAPI turns into a RequestValidationError."""
        body = await self.body()
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError("The body is not UTF-8", "", error.start) from None
        finally:
            if isinstance(body, bytearray):
                body.clear()
        if self.model is not None:
            call_of(self).ignored += drop_unknown(value, self.model)
        return value


def _refuse_constant(name: str) -> None:
    """Refuses NaN and Infinity, which Python's json reads and JSON does not have."""
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


class BodyRoute(APIRoute):
    """A route that keeps neither the body nor its values once it has returned its response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the function that handles a request."""
        handler = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field else None

        async def handle(request: Request) -> Response:
            once = _OnceRequest(request.scope, request.receive)
            if gateway_of(request).settings.unsupported_fields is UnsupportedFields.IGNORE:
                once.model = model
            response = await handler(once)
            call_of(request).body_share.release()
            return response

        return handle
