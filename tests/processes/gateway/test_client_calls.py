"""OpenAI's agents SDK, LiveKit's agents and Pipecat, unmodified, hold calls of ten turns: text and speech, functions,
interruptions and errors. Each event is checked as in test_sockets.py, and read by each client's own parser.

The entry stage answers immediately with two words, so that what comes in which order does not depend on an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.answering_entry import serve_entry
from support.peers.gateways import serve_gateway
from support.peers.realtime_clients import hold_call

# `make full` only: the clients come from package registries.
pytestmark = pytest.mark.full

ENDED = {"completed", "cancelled"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with serve_entry(media=["audio"]) as (port, _):
        pipeline = ServedPipeline("m", f"grpc://127.0.0.1:{port}", voice_aliases={"alloy": "Ethan"})
        with serve_gateway(pipeline) as url:
            yield url


@pytest.fixture
def call(gateway: str, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """call(client) returns what a client saw in its call; see hold_call."""

    def call(name: str) -> dict[str, Any]:
        gave = hold_call(name, tmp_path, gateway, "m")
        assert set(gave["ends"]) <= ENDED
        return gave

    return call


def test_openais_agents_sdk(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("openai-agents")
    assert gave["unknown"] == []
    # Also OpenAI's server answers so: the answer may have ended before its interruption, and after two results at once
    # the SDK may ask for a second answer while one is in progress.
    usual = {"response_cancel_not_active", "conversation_already_has_active_response"}
    assert set(gave["errors"]) - usual == {"item_retrieve_invalid_item_id"}
    assert gave["error"] == ["item_retrieve_invalid_item_id", "mine"]
    assert gave["cities"] == ["Ulm"] * 4
    # What the user said has been written down, so the SDK's history has it.
    assert gave["history"].count("user completed") == 10


def test_livekits_agents(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("livekit")
    assert gave["errors"] == []
    assert gave["texts"] == ["Hello there"] * 8
    assert [name for name, _ in gave["calls"]] == ["weather"] * 4
    assert gave["kinds"].count("conversation.item.truncated") == 2
    assert gave["kinds"].count("conversation.item.deleted") == 1
    assert gave["left"] == gave["kept"]


def test_pipecat(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("pipecat")
    assert gave["errors"] == []
    assert gave["called"] == [{"city": "Ulm"}] * 4
    assert gave["kinds"].count("error") == 2
    assert gave["kinds"].count("input_audio_buffer.speech_started") == 7
