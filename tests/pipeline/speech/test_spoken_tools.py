"""Functions and forms of the text where a voice speaks: calls are not read out, and JSON is refused by its field."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from omni_proto.client import OmniClient, Tool, user
from omni_stage.models.voice.checkpoint import DEFAULT_VOICE
from support.peers.gateways import run_gateway
from support.processes.forked_pipelines import fork_calling_pipeline
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Any = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": PARAMETERS}}
ASKED: Any = {
    "model": "spoken",
    "messages": [{"role": "user", "content": "Is it sunny?"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": DEFAULT_VOICE, "format": "wav"},
    "seed": 3,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    with fork_calling_pipeline(tmp_path_factory.mktemp("spoken-tools"), max_tokens=400) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def client(running: RunningPipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), f"spoken=grpc://{running.endpoint}") as gateway:
        yield openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=300)


def test_a_call_is_returned_and_not_read_out(running: RunningPipeline) -> None:
    with OmniClient(running.endpoint) as client:
        result = client.run(
            chat=user("Is it sunny?"),
            tools=[Tool("weather", "Looks.", PARAMETERS, strict=True)],
            tool_choice="required",
            seed=3,
        )
    assert [json.loads(call.arguments)["city"] in ("Rome", "Oslo") for call in result.tool_calls["llm"]]
    assert (result.text, result.audio_seconds) == ("", 0)
    assert set(result.finished) == {"llm", "voice"}


@pytest.mark.parametrize(("choice", "tokens"), [("required", 400), ("none", 40)])
def test_openai_s_answer_has_the_call_or_the_speech(client: openai.OpenAI, choice: Any, tokens: int) -> None:
    asked = {**ASKED, "max_tokens": tokens, "tool_choice": choice}
    answer = client.chat.completions.create(**asked, tools=[FUNCTION]).choices[0]
    assert answer.message.audio is not None
    audio_bytes = len(base64.b64decode(answer.message.audio.data))
    if choice == "none":
        assert answer.message.tool_calls is None
        assert answer.message.audio.transcript
        assert audio_bytes > 1000
    else:
        assert answer.message.tool_calls
        assert answer.message.audio.transcript == ""
        assert answer.finish_reason in ("tool_calls", "length"), "random weights may call until the end"
        assert audio_bytes < 100, "a header without samples"


def test_a_schema_with_speech_names_the_client_s_field(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASKED, response_format=form)
    assert refused.value.param == "response_format"
    assert "read out" in str(refused.value)
    written = client.chat.completions.create(
        **{**ASKED, "modalities": ["text"], "audio": openai.omit}, response_format=form
    )
    assert json.loads(written.choices[0].message.content or "")["city"] in ("Rome", "Oslo")
