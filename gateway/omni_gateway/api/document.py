"""Completes the OpenAPI document that FastAPI derives from the routes: errors, and which routes need a key. Pure.

The guard answers for every route, so FastAPI cannot know its errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from omni_gateway.errors import INVALID, SERVER, RateLimitError

Document = dict[str, Any]

SCHEME: Final = "apiKey"
"""Name of the security scheme."""
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"anyOf": [_TEXT, {"type": "null"}]}
_SCHEMAS: Final[Document] = {
    "Error": {
        "type": "object",
        "description": "The answer to a request that failed, in OpenAI's form.",
        "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/ErrorDetails"}},
    },
    "ErrorDetails": {
        "type": "object",
        "description": "What is wrong. docs/gateway.md lists the codes.",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": {**_TEXT, "description": "The reason and the remedy, for people."},
            "type": {**_TEXT, "enum": [INVALID, RateLimitError.type, SERVER]},
            "param": {**_TEXT_OR_NULL, "description": "The wrong field."},
            "code": {**_TEXT_OR_NULL, "description": "The reason, for programs."},
        },
    },
}
_REQUEST_ID: Final = {"x-request-id": {"description": "The request's id in all logs.", "schema": _TEXT}}
_RETRY: Final = {
    "retry-after": {"description": "Seconds to wait.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
}
_ASK: Final = {"www-authenticate": {"description": "Bearer.", "schema": _TEXT}}
_ERRORS: Final[dict[int, tuple[str, Document]]] = {
    400: ("The request is wrong; `param` names the field.", {}),
    401: ("The gateway has API keys, and the request has no valid one.", _ASK),
    404: ("No model that the key may use has this name.", {}),
    413: ("The body or a file in it exceeds its limit.", {}),
    415: ("The body has a content-encoding.", {}),
    429: ("A limit of the key is reached, or the pipeline is full.", _RETRY),
    500: ("The gateway or a stage failed.", {}),
    503: ("The pipeline or the gateway takes no requests now.", {}),
    504: ("A deadline passed.", {}),
}
_ALL: Final = (401, 429, 500, 503)
_OF_PARAMETERS: Final = (400, 404, 504)
_OF_BODIES: Final = (*_OF_PARAMETERS, 413, 415)
_UNUSED: Final = ("HTTPValidationError", "ValidationError")
"""FastAPI's schemas of its own errors, which the gateway replaces."""


def complete_document(document: Document, *, protected: str, keys: bool, open_lists: tuple[str, ...]) -> Document:
    """Returns the document with the errors and the security of each route.

    protected: beginning of the paths whose requests need a key, if `keys`. open_lists: those that do without.
    """
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in _UNUSED:
        schemas.pop(name, None)
    schemas |= _SCHEMAS
    components["securitySchemes"] = {
        SCHEME: {"type": "http", "scheme": "bearer", "description": "A key that `omnipipe gateway-key` has made."}
    }
    for path, operation in _operations(document):
        responses = operation["responses"]
        responses.pop("422", None)
        operation["security"] = []
        if not path.startswith(protected):
            continue
        needed: Document = {SCHEME: []}
        operation["security"] = [needed] if keys and path not in open_lists else [{}, needed]
        for answer in responses.values():
            answer["headers"] = {**_REQUEST_ID, **answer.get("headers", {})}
        responses |= {str(status): _answer(status) for status in _statuses(operation)}
    return document


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _statuses(operation: Document) -> list[int]:
    own = _OF_BODIES if "requestBody" in operation else _OF_PARAMETERS if operation.get("parameters") else ()
    return sorted({*_ALL, *own})


def _answer(status: int) -> Document:
    description, headers = _ERRORS[status]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": description, "headers": {**_REQUEST_ID, **headers}, "content": content}
