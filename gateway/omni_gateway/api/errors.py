"""Answers the errors of the web framework and of the gateway in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_gateway.context import gateway_of
from omni_gateway.errors import (
    GatewayError,
    InvalidRequestError,
    MethodNotAllowedError,
    RouteNotFoundError,
    answer_error,
)
from omni_gateway.openai.json_body import body_keys, join_keys

_CODES = {
    "missing": "missing_required_parameter",
    "union_tag_not_found": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "union_kind": "invalid_type",
}
_QUOTE: Final = "'"
_OBJECT: Final = "Input should be an object"
_SAID: Final = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _OBJECT),
    "int_parsing_size": "Input should be an integer of at most 64 bits",
}
"""What is wrong, where pydantic says it in words of Python, or without the limit."""


def add_error_handlers(app: FastAPI) -> None:
    """Make the app answer GatewayErrors, invalid bodies and HTTP errors in OpenAI's shape. The guard answers all
    others."""
    app.add_exception_handler(GatewayError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)


def respond(request: Request, error: GatewayError) -> Response:
    """Returns the answer to a failed request, and counts the error."""
    answer = answer_error(error)
    gateway_of(request).metrics.refused.labels(answer.body["error"]["code"]).inc()
    return JSONResponse(answer.body, answer.status, dict(answer.headers))


def describe_validation(error: RequestValidationError) -> InvalidRequestError:
    """Returns an error with OpenAI's code for the first problem that pydantic found."""
    problem = error.errors()[0]
    kind, loc = problem["type"], problem["loc"]
    if kind == "json_invalid":
        return InvalidRequestError("The body is not JSON.", code="invalid_json")
    if len(loc) == 1 and kind in ("missing", "model_attributes_type"):
        # FastAPI does not parse a body of another type, such as the one that curl sends by default.
        return InvalidRequestError(
            "The body must be a JSON object, sent with the header content-type: application/json.", code="invalid_json"
        )
    path = join_keys(_keys_of(problem, error.body))
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    if kind == "extra_forbidden":
        said = f"Unknown parameter: {path[:256]!r}. Leave it out, or see the gateway's setting unsupportedFields."
        return InvalidRequestError(said, param=path[:256], code=code)
    if kind.startswith("union_tag_"):
        context = problem["ctx"]
        tag = context["discriminator"].strip(_QUOTE)
        holder = reduce(lambda value, key: value[key], _keys_of(problem, error.body), error.body)
        path = f"{path}.{tag}"
        if kind == "union_tag_not_found" or (isinstance(holder, dict) and holder.get(tag) is None):
            # null counts as absent
            kind = "union_tag_not_found"
            code = _CODES[kind]
        else:
            use = f"{path} is {context['tag'][:64]!r}; use {context['expected_tags']}."
            return InvalidRequestError(use, param=path, code=code)
    if kind in ("missing", "union_tag_not_found"):
        return InvalidRequestError(f"Missing required parameter: {path!r}.", param=path, code=code)
    said = _SAID.get(kind, problem["msg"])
    return InvalidRequestError(f"{path or 'body'}: {said}", param=path or None, code=code)


def _keys_of(problem: Mapping[str, Any], body: Any) -> list[str | int]:
    return body_keys(problem["loc"][1:], body, missing=problem["type"] == "missing")


async def _answer(request: Request, error: Exception) -> Response:
    if not isinstance(error, GatewayError):
        raise error
    return respond(request, error)


async def _answer_validation(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return respond(request, describe_validation(error))


async def _answer_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        missing = f"{request.method} {request.url.path[:256]}"
        said = f"No route {missing}. The routes of the API begin with one /v1/, and /docs lists them."
        return respond(request, RouteNotFoundError(said))
    if error.status_code == 405:
        answer = respond(request, MethodNotAllowedError(f"{request.method} is not allowed here."))
        answer.headers.update(error.headers or {})
        return answer
    return respond(request, InvalidRequestError(str(error.detail), code="invalid_request"))
