"""Functions and forms of the text where a voice speaks: calls are not read out, and JSON is refused by its field."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from omni_cli.commands.demo import ASSETS
from omni_proto.client import OmniClient, Tool, user
from omni_stage.models.voice.checkpoint import DEFAULT_VOICE
from support.peers.gateways import run_gateway
from support.processes.forked_pipelines import fork_calling_pipeline
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline

SPEECH = base64.b64encode((ASSETS / "speech.wav").read_bytes()).decode()
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


def test_what_is_heard_may_call_and_its_result_is_spoken(tmp_path: Path) -> None:
    """Whisper passes the tools on, and later the call and its result, of which there is nothing to hear."""
    question: Any = {"type": "input_audio", "input_audio": {"data": SPEECH, "format": "wav"}}
    asked: Any = {**ASKED, "messages": [{"role": "user", "content": [question]}]}
    with (
        fork_calling_pipeline(tmp_path, max_tokens=400, hears=True) as running,
        run_gateway(tmp_path, f"spoken=grpc://{running.endpoint}") as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        called = client.chat.completions.create(**asked, tools=[FUNCTION], tool_choice="required").choices[0].message
        assert called.tool_calls
        assert json.loads(called.tool_calls[0].to_dict()["function"]["arguments"])["city"] in ("Rome", "Oslo")
        (call, *_) = called.tool_calls
        heard: Any = {"role": "user", "content": called.to_dict()["input_transcript"] or "Is it sunny?"}
        said: Any = {"role": "assistant", "tool_calls": [call.to_dict()]}
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
        asked = {**ASKED, "messages": [heard, said, result], "max_tokens": 40, "tool_choice": "none"}
        answer = client.chat.completions.create(**asked, tools=[FUNCTION]).choices[0].message
        assert answer.audio is not None
        assert answer.audio.transcript
        assert len(base64.b64decode(answer.audio.data)) > 1000
