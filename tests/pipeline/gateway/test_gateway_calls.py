"""OpenAI's agents SDK and LiveKit's agents, unmodified, hold calls of ten turns with real engines: text and speech,
interruptions and errors. Their own parsers read each event. Thinkers call no functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.gateways import serve_gateway
from support.peers.realtime_clients import hold_call
from support.processes.pipelines import RunningPipeline

# `make full` only: the clients come from package registries.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

ENDS = {"completed", "incomplete", "cancelled"}


@pytest.fixture(scope="module")
def hearing(stream_pipeline: RunningPipeline) -> Iterator[str]:
    """URL of a gateway in front of the tiny pipeline, which hears and speaks."""
    served = ServedPipeline("m", f"grpc://{stream_pipeline.endpoint}", voice_aliases={"alloy": "Ethan"})
    with serve_gateway(served) as url:
        yield url


def check(gave: dict[str, Any]) -> None:
    assert set(gave["ends"]) <= ENDS
    assert gave.get("unknown", []) == []


def test_openais_agents_sdk_speaks(hearing: str, tmp_path: Path) -> None:
    gave = hold_call("openai-agents", tmp_path, hearing, "m")
    check(gave)
    assert gave["error"] == ["item_retrieve_invalid_item_id", "mine"]
    assert gave["kinds"].count("input_audio_buffer.speech_started") == 2


def test_livekits_agents_speak(hearing: str, tmp_path: Path) -> None:
    gave = hold_call("livekit", tmp_path, hearing, "m")
    check(gave)
    assert gave["errors"] == []
    assert gave["kinds"].count("conversation.item.truncated") == 2
    assert gave["left"] == gave["kept"]
