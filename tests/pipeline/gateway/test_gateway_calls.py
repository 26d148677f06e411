"""OpenAI's agents SDK, LiveKit's agents and Pipecat, unmodified, hold calls of ten turns with real engines: text and
speech, functions, interruptions and errors. Their own parsers read each event.

Weights are random, so that a function is called because the answer must be a call of it, with one of two cities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.gateways import serve_gateway
from support.peers.realtime_clients import hold_call
from support.processes.forked_pipelines import fork_pipeline
from support.processes.pipelines import SAMPLES

# `make full` only: the clients come from package registries.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

MODEL = "tiny-omni"
CITIES = {"Ulm", "Bonn"}


@pytest.fixture(scope="module")
def gateway(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway in front of the tiny pipeline, whose thinker calls functions."""
    folder = tmp_path_factory.mktemp("calls")
    spec = yaml.safe_load((SAMPLES / "tiny-omni.yaml").read_text(encoding="utf-8"))
    (thinker,) = [one for one in spec["spec"]["stages"] if one["name"] == "thinker"]
    thinker["engineArgs"]["toolCallParser"] = "hermes"
    sample = folder / "calls.yaml"
    sample.write_text(yaml.safe_dump(spec), encoding="utf-8")
    with fork_pipeline(sample, tiny_checkpoint, folder) as running:
        pipeline = ServedPipeline(MODEL, f"grpc://{running.endpoint}", voice_aliases={"alloy": "Ethan"})
        with serve_gateway(pipeline) as url:
            yield url


@pytest.fixture
def call(gateway: str, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """call(client) returns what a client saw in its call; see hold_call."""

    def call(name: str) -> dict[str, Any]:
        gave = hold_call(name, tmp_path, gateway, MODEL)
        assert set(gave["ends"]) <= {"completed", "incomplete", "cancelled"}
        return gave

    return call


def test_openais_agents_sdk(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("openai-agents")
    assert gave["unknown"] == []
    assert gave["error"] == ["item_retrieve_invalid_item_id", "mine"]
    assert gave["cities"]
    assert set(gave["cities"]) <= CITIES
    assert gave["history"].count("user completed") == 10


def test_livekits_agents(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("livekit")
    assert gave["errors"] == []
    assert [name for name, _ in gave["calls"]][:1] == ["weather"]
    assert gave["kinds"].count("conversation.item.truncated") == 2
    assert gave["left"] == gave["kept"]


def test_pipecat(call: Callable[[str], dict[str, Any]]) -> None:
    gave = call("pipecat")
    assert gave["errors"] == []
    assert gave["called"]
    assert {one["city"] for one in gave["called"]} <= CITIES
    assert gave["kinds"].count("error") == 2
