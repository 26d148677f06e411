"""Clients append an answer to the conversation as their library returns it, and the next request is accepted."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.answering_entry import ARGUMENTS, PCM, WORDS, Starts, serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S

QUESTION = {"role": "user", "content": "Hello"}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "pcm16"}}


class Weather(BaseModel):
    city: str


TOOL = openai.pydantic_function_tool(Weather, name="weather")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Starts]]:
    with serve_entry() as (port, starts), serve_gateway(ServedPipeline("m", f"grpc://127.0.0.1:{port}")) as url:
        yield url, starts


@pytest.fixture(scope="module")
def client(served: tuple[str, Starts]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0)


def stream(client: openai.OpenAI, **fields: Any) -> Any:
    with client.chat.completions.stream(model="m", messages=[QUESTION], **fields) as events:
        return events.get_final_completion().choices[0].message


def parse(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.parse(model="m", messages=[QUESTION], **fields).choices[0].message


def create(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[QUESTION], **fields).choices[0].message


@pytest.mark.parametrize("dumped", [False, True])
@pytest.mark.parametrize("ask", [create, parse, stream])
@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "required"}, SPOKEN])
def test_the_message_of_an_answer_is_accepted(
    client: openai.OpenAI, served: tuple[str, Starts], ask: Any, fields: dict[str, Any], dumped: bool
) -> None:
    """openai-python adds fields to messages: parsed, parsed_arguments, index, annotations, and the audio itself."""
    message = ask(client, **fields)
    if dumped:
        message = message.model_dump()
    results = []
    if "tools" in fields:
        results = [{"role": "tool", "tool_call_id": f"call{index}", "content": "Sun"} for index in range(2)]
    client.chat.completions.create(model="m", messages=[QUESTION, message, *results, QUESTION])
    said = served[1][-1].chat.messages[1]
    if "tools" in fields:
        assert [(call.id, call.name, call.arguments) for call in said.tool_calls] == [
            ("call0", "weather", ARGUMENTS),
            ("call1", "weather", ARGUMENTS),
        ]
    else:
        assert [part.text for part in said.parts] == ["".join(WORDS)]


def test_an_audio_id_alone_is_refused(client: openai.OpenAI) -> None:
    past = {"role": "assistant", "audio": {"id": "audio_1"}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[QUESTION, past, QUESTION])  # type: ignore[list-item]
    assert refused.value.param == "messages[1].audio"


def test_joined_pieces_of_streamed_audio_are_the_audio(client: openai.OpenAI, served: tuple[str, Starts]) -> None:
    """openai-python and LangChain join the base64 of a stream's chunks, as text."""
    audio = stream(client, **SPOKEN).audio
    assert base64.b64decode(audio.data) == PCM
    # If each chunk had the id, openai-python's stream() would join the ids: audio_1audio_1audio_1...
    assert audio.id.count("audio_") == 1
    events = httpx.post(
        f"{served[0]}/v1/audio/speech",
        json={"model": "m", "input": "Hello", "response_format": "pcm", "stream_format": "sse"},
        timeout=PATIENCE_S,
    ).text.split("\n\n")
    pieces = [line.partition('"audio":"')[2].partition('"')[0] for line in events if "speech.audio.delta" in line]
    assert len(pieces) >= 2
    assert base64.b64decode("".join(pieces)) == PCM


@pytest.mark.parametrize("ask", [create, stream])
def test_without_parallel_calls_only_the_first_is_returned(client: openai.OpenAI, ask: Any) -> None:
    """LlamaIndex sends parallel_tool_calls: false with every tool."""
    message = ask(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert [call.id for call in message.tool_calls] == ["call0"]


def test_langchains_answers_are_accepted(served: tuple[str, Starts]) -> None:
    model = ChatOpenAI(model="m", base_url=f"{served[0]}/v1", api_key=SecretStr("none"), max_retries=0)
    whole = AIMessageChunk("")
    for chunk in model.bind_tools([Weather], tool_choice="required").stream("Hello"):
        assert isinstance(chunk, AIMessageChunk)
        whole += chunk
    model.invoke(
        [("user", "Hello"), whole, *({"role": "tool", "tool_call_id": f"call{i}", "content": ""} for i in range(2))]
    )
    assert len(served[1][-1].chat.messages[1].tool_calls) == 2


def test_names_reach_the_entry_stage(client: openai.OpenAI, served: tuple[str, Starts]) -> None:
    """LangChain for Node and instructor name the function in its result; AutoGen names every speaker."""
    called = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "system", "name": "rules", "content": "Be brief."},
        {"role": "user", "name": "anna", "content": "Hello"},
        {"role": "assistant", "name": "bot", "tool_calls": [called]},
        {"role": "tool", "name": "weather", "tool_call_id": "c", "content": "Sun"},
    ]
    client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
    assert [message.name for message in served[1][-1].chat.messages] == ["rules", "anna", "bot", "weather"]


def test_open_webui_finds_the_voices(served: tuple[str, Starts]) -> None:
    """Open WebUI reads {"voices": [{"id", "name"}]}, and shows no voice if this field is missing."""
    answer = httpx.get(f"{served[0]}/v1/audio/voices", timeout=PATIENCE_S).json()
    assert {voice["id"]: voice["name"] for voice in answer["voices"]} == {"Chelsie": "Chelsie", "Ethan": "Ethan"}
    assert answer["voices"] == answer["data"]


def test_open_webui_finds_the_models_that_speak(served: tuple[str, Starts]) -> None:
    """Open WebUI asks for /audio/models and reads {"models": [{"id"}]}."""
    answer = httpx.get(f"{served[0]}/v1/audio/models", timeout=PATIENCE_S).json()
    assert [model["id"] for model in answer["models"]] == ["m"]
    assert answer["models"] == answer["data"]
