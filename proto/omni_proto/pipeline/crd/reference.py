"""Generates the reference page of the API: `render_reference` returns `docs/reference/omnipipeline.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omni_proto.pipeline.crd.crd import COLUMNS, SHORT_NAME
from omni_proto.pipeline.crd.schema import Schema, exact_bound, resolve, whole
from omni_proto.pipeline.rules.all_rules import RULES, TEXT_RULES
from omni_proto.pipeline.rules.graph import OBJECT_RULES
from omni_proto.pipeline.rules.rule import Rule
from omni_proto.pipeline.types.forms import FORMS
from omni_proto.pipeline.types.resource import API_VERSION, KIND, NAME_PATTERN, PipelineSpec
from omni_proto.pipeline.types.status import PipelineStatus

_INTRO: Final = f"""# {KIND}

<!-- Generated from proto/omni_proto/pipeline by `make schemas`; do not edit. -->

`{API_VERSION}`, kind `{KIND}`, short name `{SHORT_NAME}`, namespaced, with a status subresource.
[pipelines.md](../pipelines.md) explains the resource by examples; `kubectl explain {SHORT_NAME}.spec.stages` shows the
same descriptions as this page.

The API server checks the rules listed under "Rules", in CEL; `omnipipe validate` checks them without a server. A field
that is not listed here is refused. No field is immutable.
"""


def render_reference() -> str:
    """Returns the reference page, as Markdown."""
    lines = [_INTRO, "## Name", "", "The name of a pipeline, `metadata.name`, is checked too.", ""]
    lines += [*_rules((*TEXT_RULES[NAME_PATTERN], *OBJECT_RULES)), ""]
    columns = sorted(COLUMNS, key=lambda column: column.get("priority", 0))
    wide = " and ".join(column["name"] for column in columns if column.get("priority"))
    lines += ["## Columns", "", f"`kubectl get omni` shows these columns, but {wide} only with `-o wide`.", ""]
    lines += ["| column | what |", "|---|---|"]
    lines += [f"| {column['name']} | {column['description']} |" for column in columns]
    seen: set[str] = set()
    for title, root in (("spec", PipelineSpec), ("status", PipelineStatus)):
        lines += ["", f"## {title}"]
        whole = root.model_json_schema(by_alias=True)
        definitions = {**whole.pop("$defs", {}), root.__name__: whole}
        for name in _in_order(root.__name__, definitions):
            if name not in seen:
                lines += ["", *_section(name, definitions)]
            seen.add(name)
    return "\n".join(lines) + "\n"


def _in_order(root: str, definitions: Mapping[str, Schema]) -> Iterator[str]:
    """Yields the names of the object types below a type, each after the first type that uses it."""
    yield root
    for child in definitions[root].get("properties", {}).values():
        for ref in _refs(child):
            if "properties" in definitions[ref]:
                yield from _in_order(ref, definitions)


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[1]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def _section(name: str, definitions: Mapping[str, Schema]) -> Iterator[str]:
    schema = definitions[name]
    yield f"### {name}"
    yield ""
    yield _one_line(schema.get("description", ""))
    yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", [])
    shared = definitions[_INHERITS[name]]["properties"] if name in _INHERITS else {}
    own = [(field, node) for field, node in schema["properties"].items() if field not in shared]
    for field, node in sorted(own, key=lambda item: item[0] not in required):
        flat = resolve(node, lambda ref: definitions[ref.rsplit("/", 1)[1]])
        default = "required" if field in required else _default(flat)
        yield f"| `{field}` | {_type(node, definitions)} | {default} | {_one_line(flat.get('description', ''))} |"
    if shared:
        yield ""
        yield f"It also has all fields of [{_INHERITS[name]}](#{_INHERITS[name].lower()})."
    inherited = _RULES_BY_NAME.get(_INHERITS.get(name, ""), ())
    if rules := tuple(rule for rule in _RULES_BY_NAME.get(name, ()) if rule not in inherited):
        yield ""
        yield from _rules(rules)


def _rules(rules: tuple[Rule, ...]) -> Iterator[str]:
    yield "Rules:"
    yield ""
    for rule in rules:
        yield f"- {rule.summary}"


_RULES_BY_NAME: Final = {owner.__name__: rules for owner, rules in RULES.items()}
_INHERITS: Final = {"Stage": "PodSettings"}


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(node: Schema) -> str:
    default = whole(node.get("default"))
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default).strip(chr(34))}`"


def _type(node: Schema, definitions: Mapping[str, Schema]) -> str:
    """Returns the type in words, with a link if the page has a section for it."""
    for choice in (node, *node.get("anyOf", ())):
        name = choice.get("$ref", "").rsplit("/", 1)[-1]
        if name and "properties" in definitions[name]:
            return f"[{name}](#{name.lower()})"
    flat = resolve(node, lambda ref: definitions[ref.rsplit("/", 1)[1]])
    if "enum" in flat:
        return " or ".join(f"`{value}`" for value in flat["enum"])
    if "anyOf" in flat:
        return " or ".join(_type(choice, definitions) for choice in flat["anyOf"])
    if flat.get("type") == "array":
        return f"list of {_type(flat['items'], definitions)}{_range(flat, 'Items', 'item')}"
    if flat.get("type") == "object":
        ((_, values),) = flat["patternProperties"].items()
        return f"map to {_type(values, definitions)}{_range(flat, 'Properties', 'key')}"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    words |= {"string": FORMS.get(flat.get("pattern", ""), "text")}
    return words[flat["type"]] + _bounds(flat) + _range(flat, "Length", "character")


def _bounds(node: Schema) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    found = [f"{word} {exact_bound(node[name])}" for name, word in words.items() if name in node]
    found += [f"in steps of {node['multipleOf']}"] if "multipleOf" in node else []
    return f", {' '.join(found)}" if found else ""


def _range(node: Schema, what: str, unit: str) -> str:
    low, high = node.get(f"min{what}", 0), node.get(f"max{what}")
    if high is None:
        return ""
    return f", {f'{low} to' if low else 'at most'} {high} {unit}{'s' if high > 1 else ''}"
