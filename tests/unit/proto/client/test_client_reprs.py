"""print() of what the client returns shows sizes, and never audio, tensors or long texts in full."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import omnipipeline
from omni_proto.brief import brief
from omni_proto.client import MediaPart, ToolCall, events, user
from omni_proto.client.events import AudioChunk, StageTimings, TextDelta, TokenDelta
from support.tables import each_row

MIB = bytes(1 << 20)
LONGEST = 10_000
"""Most characters of any repr, in a terminal a few lines."""


def large(kind: str) -> Any:
    """Returns a large value for a field of that type."""
    if kind in ("int", "bool", "float") or kind.startswith(("int |", "float |")):
        return 1
    if kind == "bytes":
        return MIB
    if kind == "str":
        return "word " * 10_000
    if kind.startswith(("tuple[int", "list[int")):
        return tuple(range(100_000))
    if kind.startswith("Mapping"):
        return {f"stage{number}": [AudioChunk("s", MIB, "e", 1, 1, 0, True)] * 100 for number in range(100)}
    if kind.startswith("tuple"):
        return (AudioChunk("s", MIB, "e", 1, 1, 0, True),) * 100
    return AudioChunk("s", MIB, "e", 1, 1, 0, True)


PUBLIC = [
    value
    for module in (omnipipeline, events)
    for name in dir(module)
    if isinstance(value := getattr(module, name), type) and dataclasses.is_dataclass(value)
]


@each_row("kind", sorted(set(PUBLIC), key=lambda one: one.__name__), ids=lambda one: one.__name__)
def test_every_public_dataclass_has_a_short_repr(kind: Any) -> None:
    if kind in (omnipipeline.ChatMessage, omnipipeline.StructuredOutput, omnipipeline.ClientTls, omnipipeline.Problem):
        return  # they check their fields, and hold nothing large; ChatMessage is below
    filled = kind(**{one.name: large(str(one.type)) for one in dataclasses.fields(kind)})
    for shown in (repr(filled), str(filled), f"{filled}"):
        assert len(shown) < LONGEST
        assert "\\x00\\x00" not in shown


def test_a_chunk_shows_its_size() -> None:
    chunk = AudioChunk("token2wav", bytes(9600), "pcm_s16le", 24_000, 1, 0, False)
    assert repr(chunk) == (
        "AudioChunk(stage='token2wav', data=<9600 bytes>, encoding='pcm_s16le', sample_rate_hz=24000, channels=1, "
        "first_sample=0, last=False, spoken=())"
    )


def test_a_small_value_is_shown_as_it_is() -> None:
    assert repr(TextDelta("thinker", "Hi")) == "TextDelta(stage='thinker', text='Hi', segment=None)"
    assert repr(TokenDelta("talker", (1, 2), ())) == "TokenDelta(stage='talker', ids=(1, 2), prompt_ids=())"
    assert repr(ToolCall("a", "b", "{}")) == "ToolCall(id='a', name='b', arguments='{}')"
    assert "accepted_unix_ns=5" in repr(StageTimings(5))


def test_what_a_message_holds_is_not_shown() -> None:
    message = user(MediaPart("image", MIB, "image/png"), "What is this?")
    assert "<1048576 bytes>" in repr(message)
    assert len(repr(message)) < 300


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.zeros((3, 4), np.float32), "<ndarray [3, 4] float32>"),
        (bytearray(3), "<3 bytes>"),
        (memoryview(np.zeros((2, 2))), "<32 bytes>"),
        ({"x": np.zeros(2)}, "{'x': <ndarray [2] float64>}"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, ... 20 in all]"),
        ((1,), "(1,)"),
        (None, "None"),
        ("a" * 300, f"<300 characters: {'a' * 200!r}...>"),
    ],
)
def test_brief(value: Any, shown: str) -> None:
    assert brief(value) == shown
