"""OpenAI's agents SDK, LiveKit's agents and Pipecat, unmodified, hold calls of ten turns with real engines: text and
speech, functions, interruptions and errors. Their own parsers read each event.

Thinkers call no functions, and text models do not hear: so one pipeline hears, and another one calls. Weights are
random, so a function is called because the answer must be a call of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.gateways import serve_gateway
from support.peers.realtime_clients import hold_call
from support.processes.forked_pipelines import fork_calling_pipeline
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


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway in front of a text model with a voice, which calls functions."""
    with ExitStack() as stack:
        running = stack.enter_context(fork_calling_pipeline(tmp_path_factory.mktemp("calling"), max_tokens=100))
        yield stack.enter_context(serve_gateway(ServedPipeline("m", f"grpc://{running.endpoint}")))


def check(gave: dict[str, Any]) -> None:
    assert set(gave["ends"]) <= ENDS
    assert gave.get("unknown", []) == []


def test_openais_agents_sdk_speaks(hearing: str, tmp_path: Path) -> None:
    gave = hold_call("openai-agents", tmp_path, hearing, "m")
    check(gave)
    assert gave["error"] == ["item_retrieve_invalid_item_id", "mine"]
    assert gave["kinds"].count("input_audio_buffer.speech_started") == 2


def test_openais_agents_sdk_calls_functions(calling: str, tmp_path: Path) -> None:
    gave = hold_call("openai-agents", tmp_path, calling, "m", speech=False)
    check(gave)
    assert gave["error"] == ["item_retrieve_invalid_item_id", "mine"]
    # The SDK does not mark its tools as strict, so random weights may write any JSON as arguments.
    done = [one["response"] for one in gave["events"] if one["type"] == "response.done"]
    called = [item["name"] for one in done for item in one["output"] if item["type"] == "function_call"]
    assert set(called) == {"weather"}


def test_livekits_agents_speak(hearing: str, tmp_path: Path) -> None:
    gave = hold_call("livekit", tmp_path, hearing, "m")
    check(gave)
    assert gave["errors"] == []
    assert gave["kinds"].count("conversation.item.truncated") == 2
    assert gave["left"] == gave["kept"]


def test_livekits_agents_call_functions(calling: str, tmp_path: Path) -> None:
    gave = hold_call("livekit", tmp_path, calling, "m", speech=False)
    check(gave)
    assert gave["errors"] == []
    assert gave["calls"]
    assert {name for name, _ in gave["calls"]} == {"weather"}


def test_pipecat_speaks(hearing: str, tmp_path: Path) -> None:
    gave = hold_call("pipecat", tmp_path, hearing, "m")
    check(gave)
    assert gave["errors"] == []
    assert gave["kinds"].count("error") == 2
