"""Renders the page at /docs: the OpenAPI document as plain HTML. It has no scripts, and loads nothing
from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

Schema = Mapping[str, Any]

METHODS: Final = ("get", "post")
_REF: Final = "#/components/schemas/"


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
