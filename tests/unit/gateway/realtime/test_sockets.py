"""Sessions over real sockets: OpenAI's client for Python, browsers' handshakes, limits, and a gateway that leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import hash_key
from omni_gateway.settings import GatewaySettings, RealtimeSettings
from support.media.spoken import sentence, speech_24k
from support.peers.answering_entry import ARGUMENTS, PCM, Starts, serve_entry
from support.peers.gateways import serve_gateway, wait_for_metrics
from support.peers.realtime_events import Caller, call, check_event
from support.processes.polling import PATIENCE_S


@pytest.fixture(scope="module")
def entry() -> Iterator[tuple[int, Starts]]:
    with serve_entry(media=["audio"]) as served:
        yield served


def pipeline(entry: tuple[int, Starts]) -> ServedPipeline:
    return ServedPipeline("m", f"grpc://127.0.0.1:{entry[0]}")


@pytest.fixture(scope="module")
def url(entry: tuple[int, Starts]) -> Iterator[str]:
    with serve_gateway(pipeline(entry)) as served:
        yield served


async def test_a_call_of_several_turns(url: str, entry: tuple[int, Starts]) -> None:
    async with call(url, model="gpt-realtime") as caller:
        assert caller.events[0]["session"]["model"] == "m"
        await caller.connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        await caller.until("session.updated")
        for turn in range(2):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"turn {turn}"}]}
            await caller.connection.conversation.item.create(item=item)
            await caller.connection.response.create()
            done = (await caller.until("response.done"))["response"]
            assert done["status"] == "completed"
            assert done["output"][0]["content"][0]["transcript"] == "Hello there"
        deltas = [one["delta"] for one in caller.events if one["type"] == "response.output_audio.delta"]
        assert b"".join(map(base64.b64decode, deltas)) == PCM * 2
        asked = entry[1][-1].chat.messages
        assert [one.role for one in asked] == ["system", "user", "assistant", "user"]
        await caller.connection.response.cancel(event_id="mine")
        error = (await caller.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")


async def test_speech_is_a_turn_and_reaches_the_pipeline(url: str, entry: tuple[int, Starts]) -> None:
    async with call(url) as caller:
        data = speech_24k()
        for at in range(0, len(data), 4800):
            await caller.connection.input_audio_buffer.append(audio=base64.b64encode(data[at : at + 4800]).decode())
        await caller.until("response.done")
        kinds = [one["type"] for one in caller.events]
        assert kinds[1:4] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
        ]
        part = entry[1][-1].chat.messages[0].parts[0]
        assert part.WhichOneof("part") is not None


async def test_a_turn_ends_although_its_detection_changes_meanwhile(url: str) -> None:
    async with call(url) as caller:
        data = speech_24k()
        await caller.connection.input_audio_buffer.append(audio=base64.b64encode(data[: 48 * 2000]).decode())
        await caller.until("input_audio_buffer.speech_started")
        vad = {"type": "server_vad", "silence_duration_ms": 700, "threshold": 0.6}
        session: Any = {"type": "realtime", "audio": {"input": {"turn_detection": vad}}}
        await caller.connection.session.update(session=session)
        await caller.connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48 * 2000)).decode())
        await caller.until("response.done")
        assert [one["type"] for one in caller.events].count("input_audio_buffer.speech_started") == 1


async def test_turns_have_their_times_although_detection_was_off_meanwhile(url: str) -> None:
    async with call(url) as caller:

        async def append(milliseconds: int, detection: Any) -> None:
            session: Any = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
            await caller.connection.session.update(session=session)
            await caller.connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48 * milliseconds)).decode())

        for detection in ({"type": "server_vad"}, None, {"type": "server_vad"}):
            await append(3000, detection)
        await caller.connection.input_audio_buffer.append(audio=base64.b64encode(speech_24k()).decode())
        started = await caller.until("input_audio_buffer.speech_started")
        assert 9000 <= started["audio_start_ms"] <= 10_500, "after nine seconds, and one of silence"


async def test_an_answer_is_begun_at_a_pause_and_dropped_if_the_user_continues(entry: tuple[int, Starts]) -> None:
    said = sentence().astype("<i2").tobytes()
    settings = GatewaySettings(realtime=RealtimeSettings(early_silence_ms=200))
    begun = len(entry[1])
    with serve_gateway(pipeline(entry), settings=settings) as url:
        async with call(url) as caller:
            vad = {"type": "server_vad", "silence_duration_ms": 1000}
            session = {"type": "realtime", "audio": {"input": {"turn_detection": vad}}}
            await caller.connection.session.update(session=session)
            for number, piece in enumerate((bytes(48_000) + said + bytes(24_000), said + bytes(24_000)), 1):
                await caller.connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
                async with asyncio.timeout(PATIENCE_S):
                    while len(entry[1]) < begun + number:  # noqa: ASYNC110 - no event says it
                        await asyncio.sleep(0.02)
            assert "response.created" not in [one["type"] for one in caller.events]
            await caller.connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48_000)).decode())
            done = (await caller.until("response.done"))["response"]
            assert done["output"][0]["content"][0]["transcript"] == "Hello there"
        assert len(entry[1]) == begun + 2
        counted = [f'omni_gateway_realtime_responses_total{{status="{one}"}} 1.0' for one in ("completed", "dropped")]
        await asyncio.to_thread(wait_for_metrics, url, *counted)


async def test_a_function_is_called(url: str) -> None:
    async with call(url) as caller:
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
        await caller.connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "tools": [tool], "tool_choice": "required"}
        )
        await caller.connection.response.create(response={"instructions": "Call."})
        done = (await caller.until("response.done"))["response"]
        assert [(one["type"], one["name"], one["arguments"]) for one in done["output"]] == [
            ("function_call", "weather", ARGUMENTS)
        ] * 2


async def test_audio_of_telephones(url: str) -> None:
    async with call(url) as caller:
        session = {"type": "realtime", "audio": {"output": {"format": {"type": "audio/pcmu"}}}}
        await caller.connection.session.update(session=session)
        await caller.connection.response.create(response={"instructions": "Speak."})
        await caller.until("response.done")
        deltas = [one["delta"] for one in caller.events if one["type"] == "response.output_audio.delta"]
        assert len(b"".join(map(base64.b64decode, deltas))) == len(PCM) // 6


def raw(url: str, path: str = "/v1/realtime?model=m", **options: Any) -> connect:
    return connect(url.replace("http", "ws", 1) + path, max_size=None, **options)


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/v1/realtime?model=nobody", {}, 404),
        ("/v1/realtime?model=m", {"origin": "https://elsewhere.example"}, 403),
        ("/v1/chat/completions", {}, 405),
        ("/elsewhere", {}, 404),
    ],
)
async def test_a_handshake_is_refused_with_an_error(url: str, path: str, options: Any, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await raw(url, path, **options)
    assert refused.value.response.status_code == status
    if path.startswith("/v1/realtime"):
        assert json.loads(refused.value.response.body or b"")["error"]["code"]
        assert refused.value.response.headers["x-request-id"].startswith("req_")


async def test_a_request_that_is_no_handshake_gets_an_error(url: str) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/v1/realtime")
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")


async def test_keys_are_taken_from_the_header_and_from_the_subprotocol(
    entry: tuple[int, Starts], tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: one, sha256: {hash_key('k')}, limits: {{requestsPerMinute: 1}}}}\n")
    settings = GatewaySettings.model_validate({"keysFile": str(file), "realtime": {"maxSessionsPerKey": 2}})
    with serve_gateway(pipeline(entry), settings=settings) as url:
        for key in ("", "wrong"):
            with pytest.raises(InvalidStatus) as refused:
                await raw(url, additional_headers={"authorization": f"Bearer {key}"} if key else {})
            assert refused.value.response.status_code == 401
        offered = ["realtime", "openai-insecure-api-key.k"]
        async with raw(url, subprotocols=offered) as browser, call(url, "k") as caller:
            assert browser.subprotocol == "realtime"
            with pytest.raises(InvalidStatus) as refused:
                await raw(url, subprotocols=offered)
            assert refused.value.response.status_code == 429
            for status in ("completed", "failed"):  # each response counts as a request
                await caller.connection.response.create(response={"instructions": "Speak."})
                done = (await caller.until("response.done"))["response"]
                assert done["status"] == status
            assert done["status_details"]["error"]["code"] == "rate_limit_exceeded"
            (counted,) = [one["rate_limits"] for one in caller.events if one["type"] == "rate_limits.updated"]
            assert [(one["name"], one["limit"], one["remaining"]) for one in counted] == [("requests", 1, 0)]
        await asyncio.to_thread(wait_for_metrics, url, "omni_gateway_realtime_sessions 0.0")
        async with raw(url, subprotocols=offered):
            pass


async def test_a_browser_opens_a_session_with_a_client_secret_from_any_replica(
    entry: tuple[int, Starts], tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"signingSecret: {'s' * 32}\nkeys:\n- {{name: one, sha256: {hash_key('k')}}}\n")
    settings = GatewaySettings.model_validate({"keysFile": str(file)})
    with (
        serve_gateway(pipeline(entry), settings=settings) as first,
        serve_gateway(pipeline(entry), settings=settings) as second,
    ):
        client = openai.AsyncOpenAI(base_url=f"{first}/v1", api_key="k")
        wishes: Any = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}
        made = await client.realtime.client_secrets.create(
            session=wishes, expires_after={"anchor": "created_at", "seconds": 60}
        )
        assert made.session.type == "realtime"
        assert made.session.instructions == "Be brief."
        offered = ["realtime", f"openai-insecure-api-key.{made.value}"]
        async with raw(second, "/v1/realtime", subprotocols=offered) as browser:
            event = json.loads(await browser.recv())
            check_event(event)
            shown = event["session"]
            assert (shown["instructions"], shown["output_modalities"], shown["model"]) == ("Be brief.", ["text"], "m")
        async with call(first, made.value, "gpt-realtime") as caller:
            assert caller.events[0]["session"]["instructions"] == "Be brief."
        with pytest.raises(openai.AuthenticationError):
            await openai.AsyncOpenAI(base_url=f"{first}/v1", api_key=made.value).models.list()
        with pytest.raises(openai.BadRequestError) as refused:
            await client.realtime.client_secrets.create(session={"type": "realtime", "max_output_tokens": 0})
        assert refused.value.param == "session.max_output_tokens"


async def test_a_session_of_transcripts_has_no_answers(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k").realtime.connect(
        extra_query={"intent": "transcription"}
    ) as connection:
        caller = Caller(connection)
        first = (await caller.until("session.created"))["session"]
        assert (first["type"], first["audio"]["input"]["transcription"]) == ("transcription", {"model": "m"})
        session: Any = {"type": "transcription", "audio": {"input": {"transcription": {"model": "gpt-4o-transcribe"}}}}
        await connection.session.update(session=session)
        await caller.until("session.updated")
        data = speech_24k()
        await connection.input_audio_buffer.append(audio=base64.b64encode(data).decode())
        written = await caller.until("conversation.item.input_audio_transcription.completed")
        assert written["transcript"] == "Hello there"
        await connection.response.create(event_id="mine")
        assert (await caller.until("error"))["error"]["event_id"] == "mine"
        assert not any(one["type"].startswith("response.") for one in caller.events)


async def closed(connection: ClientConnection) -> ConnectionClosed:
    """Returns how the server closed a connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await connection.recv()
        except ConnectionClosed as error:
            return error


async def test_a_session_ends_with_its_time(entry: tuple[int, Starts]) -> None:
    settings = GatewaySettings.model_validate({"realtime": {"sessionSeconds": 1}})
    with serve_gateway(pipeline(entry), settings=settings) as url:
        async with raw(url) as connection:
            await connection.recv()
            assert json.loads(await connection.recv())["error"]["code"] == "session_expired"
            ended = await closed(connection)
            assert ended.rcvd is not None
            assert ended.rcvd.code == 1001


async def test_a_gateway_that_leaves_closes_its_sessions(entry: tuple[int, Starts]) -> None:
    served = serve_gateway(pipeline(entry))
    url = served.__enter__()
    async with raw(url) as connection:
        await connection.recv()
        leaving = asyncio.create_task(asyncio.to_thread(served.__exit__, None, None, None))
        ended = await closed(connection)
        assert ended.rcvd is not None
        assert ended.rcvd.code == 1001
        await leaving


async def test_bad_messages_leave_the_session_open(url: str) -> None:
    async with raw(url) as connection:
        await connection.recv()
        for sent in ("{", "[]", '{"type": "response.speak"}', json.dumps({"type": "x" * 100_000}), b"\xff\xfe"):
            await connection.send(sent)
            event = json.loads(await connection.recv())
            check_event(event)
            assert event["type"] == "error"
        await connection.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(await connection.recv())["type"] == "input_audio_buffer.cleared"


async def test_a_client_writes_neither_its_url_nor_errors_into_the_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with raw(url, "/v1/realtime?model=m&api-key=sk-mine") as connection:
            await connection.recv()
            await connection.send(b"\xff\xfe", text=True)
            ended = await closed(connection)
            assert ended.rcvd is not None
            assert ended.rcvd.code == 1007
        await asyncio.to_thread(wait_for_metrics, url, "omni_gateway_realtime_sessions 0.0")
    ours = [one for one in caplog.records if one.name.startswith(("uvicorn", "omni_gateway"))]
    assert not [one for one in ours if "UTF-8" in one.getMessage()]
    assert "sk-mine" not in "".join(one.getMessage() for one in ours)


async def test_sessions_are_counted_and_end_without_a_trace(url: str) -> None:
    async with raw(url) as connection:
        await connection.recv()
        await asyncio.to_thread(wait_for_metrics, url, "omni_gateway_realtime_sessions 1.0")
    requests = 'omni_gateway_requests_total{route="/v1/realtime",status="101"}'
    await asyncio.to_thread(wait_for_metrics, url, "omni_gateway_realtime_sessions 0.0", requests)
