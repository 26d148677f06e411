"""A body costs no more than its limits allow, whatever is wrong with it, and what is right is read as json.loads does.

The tests of time are in checks/soak: here the limits are checked, and that each check comes before the work.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from hypothesis import given, strategies as st
from pydantic import BaseModel
from starlette.testclient import TestClient

from omni_gateway.api.body_route import INLINE_BYTES, BodyRoute, read_model
from omni_gateway.context import Budget, Share
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.errors import InvalidRequestError, TooLargeError
from omni_gateway.http_server.app import create_app
from omni_gateway.openai.audio_requests import SpeechRequest
from omni_gateway.openai.chat_request import ChatRequest
from omni_gateway.openai.json_body import VALUE_BYTES, VALUES, count_values, parse_json
from support.tables import each_row

JSON = {"content-type": "application/json"}
TEXT_BYTES = 8 << 20
MANY = 100_000
CHAT = '{"model":"m","messages":[{"role":"user","content":"hi"}],'
BLOCK = 32 << 10


def hold(size: int) -> None:
    """Counts nothing."""


def objects(count: int) -> str:
    return ",".join(f'"k{number}":1' for number in range(count))


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


WRONG: dict[str, tuple[str, str | None, str]] = {
    "unknown keys": (f"{CHAT}{objects(MANY)}}}", None, "65536 JSON values"),
    "a thousand unknown keys": (f"{CHAT}{objects(1000)}}}", None, "The body has 1002 fields, at most 512"),
    "equal keys": (CHAT + ",".join(['"k":1'] * MANY) + "}", None, "65536 JSON values"),
    "keys of a message": (f'{{"messages":[{{{objects(1000)}}}]}}', "messages[0]", "1000 fields, at most 512"),
    "keys of logit_bias": (f'{CHAT}"logit_bias":{{{objects(1000)}}}}}', "logit_bias", "1000 fields"),
    "empty lists": (f'{CHAT}"functions":[{"[]," * MANY}[]]}}', None, "65536 JSON values"),
    "items": (f'{CHAT}"stop":[{"1," * 9000}1]}}', "stop", "9001 items, at most 8192"),
    "short lists": (f'{CHAT}"functions":[{"[" * 60}{"[]," * 9000}1{"]" * 60}]}}', "functions" + "[0]" * 60, "items"),
    "depth": (f'{CHAT}"prediction":{nested(80)}}}', "prediction" + ".a" * 63, "more than 64"),
    "far too deep": (f'{CHAT}"prediction":{"[" * 30_000}', None, "nests more than 64"),
    "a schema": (
        f'{CHAT}"response_format":{{"type":"json_schema","json_schema":{{"name":"x","schema":{nested(70)}}}}}}}',
        "response_format.json_schema.schema" + ".a" * 61,
        "more than 64",
    ),
    "digits": (f'{CHAT}"seed":{"1" * 4000}}}', None, "4000 characters, at most 64"),
    "digits of a fraction": (f'{CHAT}"top_p":0.{"1" * 4000}}}', None, "4002 characters, at most 64"),
    "NaN": (f'{CHAT}"temperature":NaN}}', "temperature", "is NaN or infinite"),
    "NaN in a tool": (
        f'{CHAT}"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"minimum":NaN}}}}}}]}}',
        "tools[0].function.parameters.minimum",
        "is NaN or infinite",
    ),
    "infinity in arguments": (
        '{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":{"a":[-Infinity]}}}]}]}',
        "messages[0].tool_calls[0].function.arguments.a[0]",
        "is NaN or infinite",
    ),
    "a number beyond all others": (f'{CHAT}"chat_template_kwargs":{{"a":1e999}}}}', "chat_template_kwargs.a", "large"),
    "a block of digits": (f'{CHAT}"seed":{"1" * 200_000}}}', None, "at most 64"),
    "a block of nothing else": ("1" * BLOCK, None, "not JSON"),
    "a long text": (f'{{"model":"{"a " * (5 << 20)}"}}', None, f"at most {TEXT_BYTES} are read"),
    "many escapes": ('{"model":"' + "\\n" * (5 << 20) + '"}', None, "are read"),
    "a long key": (f'{CHAT}"{"k " * 600}":1}}', None, "1024 characters"),
    "a long key of base64": (f'{CHAT}"{"k" * 200_000}":1}}', None, "1024 characters"),
    "half a pair in a long path": (f'{CHAT}"metadata":{{"{"k" * 1000}":"\\ud800"}}}}', "metadata." + "k" * 247, "half"),
}


@each_row("model", [ChatRequest, SpeechRequest], ids=["chat", "speech"])
@each_row("name", WRONG)
def test_an_excess_is_refused_with_path_limit_and_remedy(name: str, model: type[BaseModel]) -> None:
    text, param, said = WRONG[name]
    with pytest.raises(InvalidRequestError) as caught:
        read_model(text.encode(), model, TEXT_BYTES, hold)
    assert caught.value.param == param
    assert said in caught.value.message
    assert len(caught.value.message) < 600


MESSAGE = '{"role":"user","content":[{"type":"text"},{"type":"nothing"}],"x":1}'
PROBLEMS: dict[str, str] = {
    "messages": f'{{"messages":[{",".join([MESSAGE] * 2000)}]}}',
    "parts": f'{{"messages":[{{"role":"user","content":[{",".join(["1"] * 8000)}]}}]}}',
    "parts of an answer": f'{{"messages":[{{"role":"assistant","content":[{",".join(["1"] * 8000)}]}}]}}',
    "tools": f'{{"tools":[{",".join(["1"] * 8000)}]}}',
    "calls": f'{{"messages":[{{"role":"assistant","tool_calls":[{",".join(["1"] * 8000)}]}}]}}',
    "stop": f'{{"stop":[{",".join(["1"] * 8000)}],"stop_token_ids":[{",".join(["[]"] * 8000)}]}}',
    "choice": f'{{"structured_outputs":{{"choice":[{",".join(["1"] * 8000)}]}}}}',
    "values of an object": f'{{"metadata":{{{objects(512)}}},"logit_bias":{{{objects(512).replace("1", "[]")}}}}}',
    "unknown fields": f"{{{objects(512)}}}",
}


@each_row("model", [ChatRequest, SpeechRequest], ids=["chat", "speech"])
@each_row("name", PROBLEMS)
def test_validation_stops_at_the_first_wrong_item(name: str, model: type[BaseModel]) -> None:
    """pydantic makes one error for each problem, which costs far more than the value. A list ends at its first wrong
    item."""
    with pytest.raises(RequestValidationError) as caught:
        read_model(PROBLEMS[name].encode(), model, TEXT_BYTES, hold)
    assert len(caught.value.errors()) <= 1100


def list_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields the schemas of lists inside a core schema."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "generator"):
            yield schema
        for one in schema.values():
            yield from list_schemas(one)
    elif isinstance(schema, list | tuple):
        for one in schema:
            yield from list_schemas(one)


def test_every_route_with_a_body_stops_validation_early() -> None:
    """Each route that takes JSON reads it through BodyRoute, and each list of its model ends at a wrong item."""
    routes = [one for one in create_app(StaticPipelines(())).routes if isinstance(one, APIRoute) and one.body_field]
    assert len(routes) >= 2
    for route in routes:
        assert isinstance(route, BodyRoute)
        model = route.body_field.field_info.annotation  # type: ignore[union-attr]
        found = list(list_schemas(model.__pydantic_core_schema__))
        slow = [one for one in found if not one.get("fail_fast") and one.get("items_schema", {}).get("type") != "any"]
        assert slow == [], route.path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{}", 1),
        ("[[],[]]", 4),
        ('{"a": 1, "b": [2, 3]}', 4),
        ('"iVBORw0KGgo+/="', 0),
        (f'["{"a," * MANY}","\\"{",[" * MANY}\\\\"]', 2),
        ("[" + "1," * MANY + "1]", 5001),
        ("[" + '"",' * MANY + "1]", 5001),
    ],
)
def test_values_are_counted_without_parsing(text: str, values: int) -> None:
    found = count_values(text.encode(), 5000)
    assert min(found, 5001) == values


def test_values_count_as_memory() -> None:
    """Parsed, an empty list takes far more memory than its two bytes."""
    text = b"[" + b"[]," * 100 + b"[]]"
    with pytest.raises(TooLargeError):
        parse_json(text, TEXT_BYTES, Share(Budget(100 * VALUE_BYTES)).add)
    assert parse_json(text, TEXT_BYTES, Share(Budget(300 * VALUE_BYTES)).add) == [[]] * 101


def test_the_maximum_number_of_values_is_accepted() -> None:
    text = "[" + ",".join(["[" + ",".join(["1"] * 1000) + "]"] * 64) + "]"
    assert parse_json(text.encode(), TEXT_BYTES, hold) == json.loads(text)
    assert VALUES > 64 * 1001


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
MEDIA = st.builds(
    lambda seed, size, before, after: before + base64.b64encode(random.Random(seed).randbytes(size)).decode() + after,
    st.integers(0, 9),
    st.integers(0, 3 * BLOCK),
    TEXTS,
    TEXTS,
)
BODIES = st.dictionaries(
    TEXTS,
    st.recursive(TEXTS | MEDIA | st.integers(-(2**63), 2**64) | st.booleans() | st.none(), st.lists, max_leaves=6),
    max_size=4,
)


@given(BODIES, st.booleans(), st.sampled_from(["", "/", "\n", "\r\n", "u"]))
def test_parse_json_equals_json_loads(body: dict[str, Any], ascii_only: bool, escaped: str) -> None:
    """With media of any size at any place, as JavaScript, Python and PHP write them, and with wrapped lines."""
    text = json.dumps(body, ensure_ascii=ascii_only)
    if escaped == "/":
        text = text.replace("/", "\\/")
    elif escaped == "u":
        text = text.replace("+", "\\u002b")
    elif escaped:
        text = text.replace("A", "A" + escaped.replace("\n", "\\n").replace("\r", "\\r"))
    assert parse_json(text.encode(), TEXT_BYTES, hold) == json.loads(text)


def test_large_media_leave_no_text_to_parse() -> None:
    """11 MB of base64 is allowed, and json.loads gets none of it."""
    data = base64.b64encode(bytes(range(256)) * (8 << 12)).decode()
    for form in (data, data.replace("/", "\\/")):
        body = f'{{"audio":{{"data":"{form}"}},"x":["{data[:70000]}"]}}'.encode()
        assert parse_json(body, 2 << 20, hold) == {"audio": {"data": data}, "x": [data[:70000]]}


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1], ids=["small", "large"])
@pytest.mark.parametrize("path", ["chat/completions", "audio/speech"])
def test_routes_return_these_errors(path: str, size: int) -> None:
    """Small bodies are read on the event loop, and large ones in a thread, with the same answers."""
    client = TestClient(create_app(StaticPipelines(())))
    pad = " " * size
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"model": "m"}
    right = {**fields} if "chat" in path else {**fields, "input": "hi"}
    for body, status, code, param in (
        (json.dumps(right), 404, "model_not_found", "model"),
        (json.dumps({**right, "nope": 1}), 400, "unknown_parameter", "nope"),
        (json.dumps({**right, "seed": []}), 400, "invalid_type", "seed"),
        ('{"a":', 400, "invalid_json", None),
        (f"{{{objects(600)}}}", 400, "invalid_value", None),
    ):
        answer = client.post(f"/v1/{path}", content=pad + body, headers=JSON)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param), body[:60]
