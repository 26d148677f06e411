"""Checks that xgrammar enforces every keyword of a JSON Schema, and refuses the others by name. Pure.

xgrammar 0.2.8 reads one group of keywords per schema, in this order, and ignores the rest without a word: $ref, const,
enum, anyOf, oneOf (as anyOf), allOf, and then the keywords of the type. So each schema here may hold the keywords of
one group only, besides annotations. Schemas that no $ref reaches are not read.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from omni_stage.forms.disjoint import Schemas, kinds_of
from omni_stage.forms.equal import Rewriter
from omni_stage.forms.regex import UnsupportedRegexError, check_regex

MAX_PROPERTIES, MAX_COUNTED_PROPERTIES = 256, 64
"""Maximum number of properties of one object of a JSON Schema, and of an object with minProperties or maxProperties.
Compiling an object takes time that grows faster than the square of their number: 1 s for 200, 40 s for 1,000 (xgrammar
0.2.8, 150,000 tokens, two cores). If the schema bounds their number, memory grows in the same way, to gigabytes."""
MAX_ONE_OF: Final = 64
"""Maximum number of alternatives of oneOf: each pair is compared."""

ANNOTATIONS: Final = frozenset(
    (
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$defs", "definitions", "contentEncoding", "contentMediaType", "contentSchema"),
        *("discriminator", "externalDocs"),
    )
)
"""Keywords that restrict nothing. Names that begin with x- do not either."""
FORMATS: Final = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid"),
    *("uri", "uri-reference", "uri-template"),
)
"""xgrammar ignores other formats, and writes broken JSON for json-pointer and relative-json-pointer."""
_FREE_FORMATS: Final = ("password", "binary", "path")
"""Formats of OpenAPI and pydantic that every string fits."""
_MAYBE_EMPTY: Final = ("uri-reference", "uri-template")
_SWITCHES: Final = ("nullable", "uniqueItems")
"""Keywords that restrict nothing if they are false."""
_GROUPS: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_LENGTHS: Final = ("minLength", "maxLength")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEYWORDS: Final = {
    "string": ("pattern", "format", *_LENGTHS),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": (),
    "null": (),
    "array": ("items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
}
_KNOWN: Final = frozenset((*itertools.chain(*_KEYWORDS.values()), *_GROUPS, "type"))
_IMPLIED: Final = {
    "object": ("properties", "additionalProperties", "unevaluatedProperties"),
    "array": ("items", "prefixItems", "unevaluatedItems"),
}
"""Keywords from which xgrammar infers the type."""
_UNSEEN: Final = (
    "title",
    "default",
    "description",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
)
"""xgrammar takes two schemas for the same if they differ only below these names, even if these are properties."""
_MARK: Final = "x-omnipipeline-node"


class UnsupportedSchemaError(ValueError):
    """A schema is invalid or holds something that is not enforced. The message names the keyword, its place, the
    remedy."""


def admit_schema(schema: Mapping[str, Any] | bool) -> Any:
    """Returns the schema as xgrammar must get it. Raises UnsupportedSchemaError."""
    root = copy.deepcopy(schema)
    try:
        json.dumps(root, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _error("half of a surrogate pair", "#", "write whole characters") from error
    schemas = Schemas(root)
    rewriter = Rewriter(schemas)
    waiting: list[tuple[Any, str]] = [(root, "#")]
    seen: set[int] = set()
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, bool) and node:
            continue
        if not isinstance(node, dict):
            raise _error("false" if node is False else "a value that is no schema", place, "no text fits it")
        if id(node) in seen:
            continue
        seen.add(id(node))
        rewriter.rewrite(node)
        waiting.extend(_check(node, place, schemas))
        if _confuses(node):
            node[_MARK] = len(seen)
    return root


def _check(node: dict[str, Any], place: str, schemas: Schemas) -> Iterator[tuple[Any, str]]:
    """Yields the schemas below one schema, with their places."""
    named = {name for name in node if name not in ANNOTATIONS and not name.startswith("x-")}
    if place == "#":
        named.discard("$id")
        if isinstance(node.get("id"), str):  # as draft 4 names it
            named.discard("id")
    named -= {name for name in _SWITCHES if node.get(name) is False}
    for name in sorted(named - _KNOWN):
        raise _error(f'"{name[:64]}"', place, "leave it out")
    group = next((name for name in _GROUPS if name in named), None)
    if group is None:
        yield from _check_types(node, place, named)
        return
    for name in sorted(named - {group}):
        if name != "type" or group == "$ref" or not schemas.fits_type(node):
            raise _error(f'"{name}" beside "{group}"', place, f'write it into the schema that "{group}" gives')
    if group in ("const", "enum") and not _is_exact(node[group]):
        raise _error(f'"{group}" with a whole number of more than 64 bits', place, "use a string")
    if group == "$ref":
        yield _resolve(node["$ref"], place, schemas), str(node["$ref"])
    elif group == "enum" and not (isinstance(node["enum"], list) and node["enum"]):
        raise _error('"enum" without values', place, "list them")
    elif group in ("anyOf", "oneOf", "allOf"):
        arms = node[group]
        if not isinstance(arms, list) or not arms:
            raise _error(f'"{group}" without schemas', place, "list them")
        if group == "allOf" and len(arms) > 1:
            raise _error('"allOf" of several schemas', place, "write them as one schema")
        if group == "oneOf":
            _check_exclusive(arms, place, schemas)
        yield from ((arm, f"{place}/{group}/{number}") for number, arm in enumerate(arms))


def _check_exclusive(arms: Sequence[Any], place: str, schemas: Schemas) -> None:
    if len(arms) > MAX_ONE_OF:
        raise _error(f'"oneOf" of more than {MAX_ONE_OF} schemas', place, 'use "anyOf"')
    for one, other in itertools.combinations(arms, 2):
        if not schemas.are_disjoint(one, other):
            raise _error(
                '"oneOf" of schemas that one value could fit together',
                place,
                'use "anyOf", or give each of them a required property with another "const"',
            )


def _resolve(reference: Any, place: str, schemas: Schemas) -> Any:
    if not isinstance(reference, str) or (found := schemas.find(reference)) is None:
        raise _error(
            '"$ref" to something other than #/NAME/... of this schema, with names that need no escapes',
            place,
            'move the schema into "$defs"',
        )
    return found


def _check_types(node: dict[str, Any], place: str, named: set[str]) -> Iterator[tuple[Any, str]]:
    kinds = kinds_of(node.get("type"))
    if "type" in named and not kinds <= _KEYWORDS.keys():
        raise _error('"type" with a value that is no JSON type', place, "correct it")
    if not kinds:
        implied = next((kind for kind, names in _IMPLIED.items() if not named.isdisjoint(names)), None)
        if implied is None:
            for name in sorted(named):
                raise _error(f'"{name}" without "type"', place, 'add "type"')
            return
        kinds = {implied}
    if "string" in kinds:
        _check_string(node, place)
    if not kinds.isdisjoint(("integer", "number")):
        _check_number(node, place, is_whole="number" not in kinds)
        if "string" not in kinds and "format" in node and node["format"] not in FORMATS:
            raise _error('"format" of a number with this value', place, "use minimum and maximum")
    if "array" in kinds:
        yield from _check_array(node, place)
    if "object" in kinds:
        yield from _check_object(node, place)


def _check_string(node: dict[str, Any], place: str) -> None:
    form = node.get("format", "date")
    if form in _FREE_FORMATS:
        del node["format"]
    elif not isinstance(form, str) or form not in FORMATS:
        raise _error('"format" with this value', place, f"known are {', '.join(sorted(FORMATS))}")
    elif "format" in node and form not in _MAYBE_EMPTY and node.get("minLength") == 1:
        # As pydantic and zod write it: no text of these formats is empty.
        del node["minLength"]
    given: list[str] = [name for name in ("pattern", "format") if name in node]
    given += [name for name in _LENGTHS if name in node][:1]
    if len(given) > 1:
        raise _error(f'"{given[1]}" beside "{given[0]}"', place, "keep one of them")
    if "pattern" in node:
        node["pattern"] = _check_pattern(node["pattern"], f"{place}/pattern")
    _check_counts(node, _LENGTHS, place)


def _check_pattern(pattern: Any, place: str) -> str:
    if not isinstance(pattern, str):
        raise _error("a pattern that is no text", place, "correct it")
    try:
        return check_regex(pattern, in_json=True)
    except UnsupportedRegexError as error:
        raise _error(f"this regular expression: {error}", place, "write it without") from error


def _check_number(node: dict[str, Any], place: str, *, is_whole: bool) -> None:
    for name in _BOUNDS:
        value = node.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_exact(value):
            raise _error(f'"{name}" that is no number of at most 64 bits', place, "correct it")
        if not is_whole and value != float(value):
            raise _error(f'"{name}" of more than 53 bits for a number', place, 'use "integer", or round it')


def _check_counts(node: dict[str, Any], names: Sequence[str], place: str) -> None:
    for name in names:
        value = node.get(name, 0)
        if isinstance(value, float) and value.is_integer():
            value = node[name] = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise _error(f'"{name}" that is no whole number from 0 to 2147483647', place, "correct it")


def _check_array(node: dict[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    _check_counts(node, ("minItems", "maxItems"), place)
    first = node.get("prefixItems", [])
    if not isinstance(first, list):
        raise _error('"prefixItems" that is no list', place, "correct it")
    if isinstance(node.get("items"), list):
        raise _error('"items" with a list beside "prefixItems"', place, "keep one of them")
    if "items" in node and "unevaluatedItems" in node:
        raise _error('"unevaluatedItems" beside "items"', place, "leave it out")
    yield from ((item, f"{place}/prefixItems/{number}") for number, item in enumerate(first))
    yield from _open_ends(node, ("items", "unevaluatedItems"), place)


def _open_ends(node: dict[str, Any], names: Sequence[str], place: str) -> Iterator[tuple[Any, str]]:
    """Yields the schemas of what a schema allows in addition; false allows nothing."""
    yield from ((node[name], f"{place}/{name}") for name in names if node.get(name, False) is not False)


def _check_object(node: dict[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    properties, patterns = node.get("properties", {}), node.get("patternProperties", {})
    if not isinstance(properties, dict) or not isinstance(patterns, dict):
        raise _error('"properties" or "patternProperties" that is no object', place, "correct it")
    _check_names(node, properties, patterns, place)
    _check_counts(node, ("minProperties", "maxProperties"), place)
    extra = [name for name in ("additionalProperties", "unevaluatedProperties") if name in node]
    if len(extra) > 1:
        raise _error('"unevaluatedProperties" beside "additionalProperties"', place, "leave it out")
    is_open = not properties or any(node[name] is not False for name in extra)
    if node.get("minProperties", 0) > (1 if is_open else len(properties)):
        # The model may write the same name twice, which counts twice.
        raise _error('"minProperties" of an object with other names than its "properties"', place, "require properties")
    counted = not {"minProperties", "maxProperties"}.isdisjoint(node)
    if not (properties or patterns or extra or "propertyNames" in node) and counted:
        node["additionalProperties"] = True  # xgrammar would count, but allow none
    most = MAX_COUNTED_PROPERTIES if counted else MAX_PROPERTIES
    if len(properties) > most:
        ending = " with minProperties or maxProperties" if counted else ""
        raise _error(
            f"an object of {len(properties)} properties, at most {most}{ending}", place, "divide it into objects"
        )
    yield from ((value, f"{place}/properties/{name[:64]}") for name, value in properties.items())
    yield from _open_ends(node, extra, place)
    if patterns:
        ((pattern, value),) = patterns.items()
        del patterns[pattern]
        patterns[_check_pattern(pattern, f"{place}/patternProperties")] = value
        yield value, f"{place}/patternProperties"
    names = node.get("propertyNames")
    if isinstance(names, dict):
        if "$ref" in names:
            raise _error('"propertyNames" of this "$ref"', place, "write the schema itself")
        names.setdefault("type", "string")
        yield names, f"{place}/propertyNames"


def _check_names(node: dict[str, Any], properties: Any, patterns: Any, place: str) -> None:
    """Raises UnsupportedSchemaError if xgrammar would not enforce which properties the object has."""
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _error('"required" that is no list of names', place, "correct it")
    if not properties.keys() >= set(required):
        raise _error('"required" of a name that "properties" does not hold', place, 'add it to "properties"')
    names = node.get("propertyNames", {})
    if not isinstance(names, dict) or kinds_of(names.get("type")) not in ({"string"}, set()):
        raise _error('"propertyNames" that is no schema of strings', place, "correct it")
    if names and False in (node.get("additionalProperties"), node.get("unevaluatedProperties")):
        raise _error('"additionalProperties": false beside "propertyNames"', place, "name the properties")
    if len(patterns) > 1:
        raise _error('"patternProperties" of several patterns', place, "join them to one")
    used = [name for name in ("patternProperties", "propertyNames", "properties") if node.get(name) not in (None, {})]
    if len(used) > 1:
        raise _error(f'"{used[0]}" beside "{used[1]}"', place, "keep one of them")


def _is_exact(value: Any) -> bool:
    """Returns whether xgrammar keeps every number of a value: it turns whole ones of more than 64 bits into others."""
    if isinstance(value, dict | list):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or -(1 << 63) < value < 1 << 63


def _confuses(node: dict[str, Any]) -> bool:
    """Returns whether xgrammar could take this schema for another one: see _UNSEEN."""
    below = [node.get("properties"), node.get("const"), *(node["enum"] if isinstance(node.get("enum"), list) else [])]
    return any(_holds_unseen(value) for value in below)


def _holds_unseen(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name in value for name in _UNSEEN) or any(map(_holds_unseen, value.values()))
    return isinstance(value, list) and any(map(_holds_unseen, value))


def _error(what: str, place: str, remedy: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(f"structured output cannot enforce {what} (at {place[:200]}); {remedy}")
