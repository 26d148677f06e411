"""What an API key may use: patterns of models, priorities, salts and forms of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_gateway import context
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import GatewayError
from omni_gateway.guard.keys import KeyFileError, hash_key, parse_keys
from omni_gateway.openai.chat_request import ChatRequest
from omni_gateway.rights import ApiKey, KeyRights, matches
from support.tables import each_row

HASH = "a" * 64
CHAT = ServedPipeline("chat", "grpc://a:1", namespace="team-a", aliases=("gpt-4o", "Qwen/Qwen2.5-Omni-7B"))
SECOND = ServedPipeline("chat", "grpc://b:1", namespace="team-b", has_name=False)
LOOKALIKE = ServedPipeline("x", "grpc://c:1", namespace="evil", aliases=("team-a/Chat", "chat-2"))
LOCAL = ServedPipeline("omni", "grpc://d:1", aliases=("tts-1",))


@each_row(
    "pattern, selected",
    [
        ("*", "CHAT SECOND LOOKALIKE LOCAL"),
        ("chat", "CHAT"),
        ("team-a/chat", "CHAT"),
        ("gpt-4o", "CHAT"),
        ("Qwen/Qwen2.5-Omni-7B", "CHAT"),
        ("team-b/chat", "SECOND"),
        ("team-a/*", "CHAT"),
        ("*/chat", "CHAT SECOND"),
        ("team-*/*", "CHAT SECOND"),
        ("*/*", "CHAT SECOND LOOKALIKE"),
        ("cha*", "CHAT LOOKALIKE"),
        ("*chat", "CHAT"),
        ("gpt-*", "CHAT"),
        ("tts-1", "LOCAL"),
        ("omn*", "LOCAL"),
        ("Chat", ""),
        ("team-a", ""),
        ("team*", ""),
        ("Qwen/*", ""),
        ("c*a*t*t", ""),
        ("hat", ""),
        ("cha", ""),
    ],
)
def test_a_pattern_selects(pattern: str, selected: str) -> None:
    named = {"CHAT": CHAT, "SECOND": SECOND, "LOOKALIKE": LOOKALIKE, "LOCAL": LOCAL}
    assert " ".join(name for name, one in named.items() if matches(pattern, one)) == selected
    assert KeyRights(models=(pattern,)).filter(named.values()) == [named[name] for name in selected.split()]


def test_patterns_match_in_linear_time() -> None:
    """With backtracking, a name that almost fits many stars would never be refused."""
    assert not matches("*a" * 90 + "*b", ServedPipeline("a" * 128, "grpc://a:1"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("models: []", "models"),
        ("models: chat", "models"),
        ("models: ['']", "models"),
        ("models: ['a?']", "models"),
        ("models: ['a/*/b']", "one slash"),
        (f"models: [{', '.join(['a'] * 65)}]", "models"),
        (f"models: [{'a' * 193}]", "models"),
        ("priority: 5", "priority"),
        ("priority: {min: 5, max: 4}", "min is larger than max"),
        ("priority: {min: -1001}", "priority.min"),
        ("priority: {least: 0}", "least"),
        ("cacheSalt: None", "cacheSalt"),
        ("structuredOutput: json", "structuredOutput"),
        ("structuredOutput: ~", "structuredOutput"),
        ("model: [chat]", "model"),
        ("models: [a], models: [b]", "two fields models"),
        ("priority: {min: 0, min: 1}", "two fields min"),
    ],
)
def test_a_wrong_entry_names_its_field(fields: str, says: str) -> None:
    with pytest.raises(KeyFileError, match=says):
        parse_keys(f"keys:\n- {{name: a, sha256: {HASH}, {fields}}}")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(KeyFileError, match="more than 1048576 bytes"):
        parse_keys(b"#" * (1 << 20) + b"\n")


@pytest.mark.parametrize(
    ("bounds", "given", "sent"),
    [
        ("", None, 0),
        ("", -1000, -1000),
        ("{min: 0}", 0, 0),
        ("{min: 0}", 1000, 1000),
        ("{min: 0}", -1, None),
        ("{min: 5, max: 9}", None, 5),
        ("{max: -5}", None, -5),
        ("{min: 5, max: 9}", 0, None),
        ("{min: 5, max: 9}", 10, None),
    ],
)
def test_priorities(bounds: str, given: int | None, sent: int | None) -> None:
    """A given priority outside the bounds is refused. A request without one gets the nearest to 0."""
    rights = key(f"priority: {bounds}" if bounds else "")
    body = chat(priority=given) if given is not None else chat()
    if sent is None:
        with pytest.raises(GatewayError, match=r"priority is -?\d+; this API key may use") as refused:
            rights.check(body)
        assert (refused.value.param, refused.value.status) == ("priority", 400)
    else:
        rights.check(body)
        assert rights.priority_of(given) == sent


def test_salts_of_keys() -> None:
    """No two keys, and no caller's own salt, give the salt of a key. It stays the same in every replica."""
    alice, again, bob = key(), key(), key(sha256=hash_key("bob"))
    salts = [alice.salt_of(None), alice.salt_of("a"), alice.salt_of("b"), bob.salt_of(None), bob.salt_of("a")]
    assert len(set(salts)) == len(salts)
    assert all(len(salt) <= 128 for salt in salts)
    assert [again.salt_of(None), again.salt_of("a")] == salts[:2]
    own = key("cacheSalt: Caller", sha256=hash_key("eve"))
    assert (own.salt_of(None), own.salt_of(salts[0])) == ("", salts[0])
    assert alice.salt_of(salts[0]) not in salts
    assert KeyRights().salt_of(None) == ""


def test_routes_see_only_what_the_key_may_use() -> None:
    """Every route takes its pipelines from pipelines_of, which asks the key's rights."""
    folder = Path(context.__file__).parent
    assert [file.name for file in folder.glob("*.py") if "list_pipelines" in file.read_text()] == ["context.py"]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "json", "none"),
    [
        ({}, None, None),
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, None, "response_format"),
        ({"response_format": SCHEMA}, None, "response_format"),
        ({"structured_outputs": {"json": {}}}, None, None),
        ({"structured_outputs": {"json": {"type": "object"}}}, None, "structured_outputs"),
        ({"structured_outputs": {"json_object": True}}, None, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs", "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, "structured_outputs", "structured_outputs"),
        ({"structured_outputs": {"json": "{}", "regex": "a"}}, "structured_outputs", "structured_outputs"),
        ({"tools": [TOOL]}, None, "tools"),
        ({"tools": []}, None, None),
    ],
)
def test_structured_output_rights(fields: dict[str, Any], json: str | None, none: str | None) -> None:
    body = chat(**fields)
    KeyRights().check(body)
    for rights, refused in ((key("structuredOutput: Json"), json), (key("structuredOutput: None"), none)):
        if refused is None and not fields.get("structured_outputs"):
            rights.check(body)
        elif refused is not None:
            with pytest.raises(GatewayError, match="this API key may use") as error:
                rights.check(body)
            assert error.value.param == refused


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def key(fields: str = "", sha256: str = "a" * 64) -> ApiKey:
    (found,) = parse_keys(f"keys:\n- {{name: a, sha256: {sha256}{', ' if fields else ''}{fields}}}").keys
    return found
