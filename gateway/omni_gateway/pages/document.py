"""The page at /, static files with headers that forbid loading anything from other hosts; and the OpenAPI document:
what FastAPI derives from the routes, with errors and keys added, and as HTML for /docs.

The guard answers for every route, so FastAPI cannot know its errors. The HTML has no scripts, and loads nothing from
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from os import PathLike, stat_result
from pathlib import Path
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from omni_gateway.errors import INVALID, SERVER, RateLimitError

FOLDER: Final = Path(__file__).parent / "static"

HEADERS: Final = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",
            "media-src blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # The browser revalidates each file at each visit (304 if unchanged), so an upgrade never mixes two versions.
    "cache-control": "no-cache",
}
"""Headers of every file of the page. blob: URLs are media that the user attached, and the speech of answers."""


class PageFiles(StaticFiles):
    """Serves the page, and answers all requests that no route takes."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns the response with a file. Raises HTTPException with status 404 if there is none, or if the method is
        neither GET nor HEAD."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        return await super().get_response(path, scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Returns the response with a file, or with status 304, and adds HEADERS."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


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
Schema = Mapping[str, Any]
METHODS: Final = ("get", "post")
_REF: Final = "#/components/schemas/"


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


def render_docs(document: Schema) -> str:
    """Returns the HTML page of an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    title = escape(document["info"]["title"])
    body = "".join(
        part
        for path, operations in document["paths"].items()
        for method in METHODS
        if method in operations
        for part in _operation(method, path, operations[method])
    )
    types = "".join(part for name in sorted(schemas) for part in _type(name, schemas[name]))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/docs.css"></head><body><main>'
        f"<h1>{title}</h1><p>{escape(document['info'].get('description', ''))} "
        'Programs read <a href="/openapi.json">openapi.json</a>.</p>'
        f"{body}<h2>Types</h2>{types}</main></body></html>"
    )


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    security = operation.get("security", ())
    if security:
        yield f"<p>{'An API key is optional' if {} in security else 'Needs an API key'}: Authorization: Bearer KEY</p>"
    rows = [
        (one["name"], one.get("schema", {}), one.get("required", False), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield _table(rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body, {escape(kind)}: {_words(content.get('schema', {}))}</p>"
    for status, answer in operation["responses"].items():
        kinds = ", ".join(map(escape, answer.get("content", ())))
        yield f"<p>{escape(status)}: {escape(answer.get('description', ''))}{f' ({kinds})' if kinds else ''}</p>"


def _type(name: str, schema: Schema) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>'
    required = schema.get("required", ())
    rows = [
        (field, node, field in required, node.get("description", ""))
        for field, node in schema.get("properties", {}).items()
    ]
    if rows:
        yield _table(rows)
    elif "properties" not in schema:
        yield f"<p>{_words(schema)}</p>"


def _table(rows: list[tuple[str, Schema, bool, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if required else ''}</td>"
        f"<td>{_words(node)}</td><td>{escape(text)}</td></tr>"
        for name, node, required, text in rows
    )
    return f"<table><tr><th>field</th><th>type</th><th>meaning</th></tr>{cells}</table>"


def _words(node: Schema) -> str:
    """Returns a description of a schema as HTML, with links to the types that it names."""
    if "$ref" in node:
        name = escape(node["$ref"].removeprefix(_REF))
        return f'<a href="#{name}">{name}</a>'
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            return " or ".join(_words(one) for one in node[key] if one != {"type": "null"})
    if "enum" in node or "const" in node:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        return f"list of {_words(node.get('items', {}))}"
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    said = "".join(f" {word} {node[name]}" for name, word in bounds.items() if name in node)
    return escape(f"{node.get('type', 'anything')}{said}")
