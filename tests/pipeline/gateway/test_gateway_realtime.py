"""OpenAI's client for Python, unmodified, holds calls with real engines: turns, an interruption, errors, long calls.

Each event is checked against the client's own types, and their order as LiveKit's agents rely on it.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.settings import GatewaySettings, RealtimeSettings
from support.media.spoken import speech_24k
from support.peers.gateways import serve_gateway, wait_for_metrics
from support.peers.realtime_events import Caller, call
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline

MODEL = "tiny-omni"
PIECE = 4800
"""100 ms."""


async def say(caller: Caller, text: str) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await caller.connection.conversation.item.create(item=item)


async def speak(caller: Caller, data: bytes) -> None:
    for at in range(0, len(data), PIECE):
        await caller.connection.input_audio_buffer.append(audio=base64.b64encode(data[at : at + PIECE]).decode())


def audio_of(caller: Caller, response_id: str) -> bytes:
    """Returns the audio of a response."""
    kind = "response.output_audio.delta"
    found = [one for one in caller.events if one["type"] == kind and one["response_id"] == response_id]
    return b"".join(base64.b64decode(one["delta"]) for one in found)


async def test_turns_of_text_and_of_speech_are_answered_with_speech(tiny_gateway: str) -> None:
    async with call(tiny_gateway, model=MODEL) as caller:
        session = {"type": "realtime", "instructions": "Be brief.", "max_output_tokens": 12, "tracing": "auto"}
        await caller.connection.session.update(session=session)
        shown = (await caller.until("session.updated"))["session"]
        assert shown["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        done = {}
        for turn in range(3):
            await say(caller, f"This is turn {turn}.")
            await caller.connection.response.create(response={"metadata": {"client_event_id": str(turn)}})
            done = (await caller.until("response.done"))["response"]
            assert done["status"] in ("completed", "incomplete"), done["status_details"]
            assert done["metadata"] == {"client_event_id": str(turn)}
            assert done["usage"]["output_tokens"] > 0
            assert len(audio_of(caller, done["id"])) > 0
        await speak(caller, speech_24k())
        heard = (await caller.until("response.done"))["response"]
        assert heard["status"] in ("completed", "incomplete"), heard["status_details"]
        assert heard["usage"]["input_tokens"] > done["usage"]["input_tokens"], "the audio is part of the prompt"
        kinds = [one["type"] for one in caller.events]
        assert kinds.count("input_audio_buffer.speech_started") == 1
        assert "error" not in kinds


async def test_speech_interrupts_the_answer_and_the_engines(tiny_gateway: str) -> None:
    async with call(tiny_gateway, model=MODEL) as caller:
        await caller.connection.session.update(session={"type": "realtime", "max_output_tokens": 2000})
        data = speech_24k()
        await speak(caller, data[: 48 * 1000])  # silence
        await say(caller, "Tell me a very long story.")
        await caller.connection.response.create()
        await caller.until("response.output_audio_transcript.delta")
        await speak(caller, data[48 * 1000 : 48 * 2000])
        done = (await caller.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        await caller.connection.session.update(session={"type": "realtime", "max_output_tokens": 100})
        await speak(caller, bytes(48 * 2000))
        done = (await caller.until("response.done"))["response"]
        assert done["status"] in ("completed", "incomplete"), done["status_details"]
        # Cut an answer that has ended, because an interrupted one may have been a single character.
        item = done["output"][0]
        whole = item["content"][0]["transcript"]
        await caller.connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=80)
        await caller.until("conversation.item.truncated")
        await caller.connection.conversation.item.retrieve(item_id=item["id"])
        cut = (await caller.until("conversation.item.retrieved"))["item"]["content"][0]["transcript"]
        assert whole.startswith(cut)
        assert len(cut) < len(whole)
    await asyncio.to_thread(wait_for_metrics, tiny_gateway, "omni_gateway_realtime_sessions 0.0")


async def test_errors_name_the_clients_event_and_the_call_continues(tiny_gateway: str) -> None:
    async with call(tiny_gateway, model=MODEL) as caller:
        await caller.connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await caller.connection.response.cancel(event_id="a")
        assert (await caller.until("error"))["error"]["event_id"] == "a"
        await say(caller, "word " * 100_000)
        await caller.connection.response.create()
        done = (await caller.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] in ("context_length_exceeded", "string_above_max_length")
        long = next(one["item"]["id"] for one in caller.events if one["type"] == "conversation.item.added")
        await caller.connection.conversation.item.delete(item_id=long)
        await say(caller, "Hello.")
        await caller.connection.response.create(response={"max_output_tokens": 5})
        done = (await caller.until("response.done"))["response"]
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["usage"]["output_token_details"] == {"text_tokens": 5, "audio_tokens": 0}


async def test_the_users_speech_is_written_down(tiny_gateway: str) -> None:
    async with call(tiny_gateway, model=MODEL) as caller:
        audio = {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}
        await caller.connection.session.update(session={"type": "realtime", "audio": audio})
        shown = (await caller.until("session.updated"))["session"]
        assert shown["audio"]["input"]["transcription"] == {"model": MODEL}
        await speak(caller, speech_24k())
        await caller.connection.input_audio_buffer.commit()
        kind = "conversation.item.input_audio_transcription"
        written = await caller.until(f"{kind}.completed")
        pieces = [one["delta"] for one in caller.events if one["type"] == f"{kind}.delta"]
        assert "".join(pieces) == written["transcript"]
        assert written["usage"]["input_tokens"] > 0


async def test_a_call_has_more_turns_than_a_request_may_have_media(tiny_gateway: str) -> None:
    """The entry takes eight media; each turn adds the user's speech, and all earlier speech is sent again."""
    piece = speech_24k()[48 * 1000 : 48 * 1300]
    async with call(tiny_gateway, model=MODEL) as caller:
        session = {"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 3}
        await caller.connection.session.update(session={**session, "audio": {"input": {"turn_detection": None}}})
        tokens = []
        for _ in range(11):
            await speak(caller, piece)
            await caller.connection.input_audio_buffer.commit()
            await caller.connection.response.create()
            done = (await caller.until("response.done"))["response"]
            assert done["status"] in ("completed", "incomplete"), done["status_details"]
            tokens.append(done["usage"]["input_tokens"])
        assert tokens[:8] == sorted(tokens[:8])
        assert tokens[8] < tokens[7], "the older half is not heard again"
        assert "error" not in [one["type"] for one in caller.events]


async def test_a_conversation_that_is_too_long_for_the_model_loses_its_oldest_turns(tiny_gateway: str) -> None:
    async with call(tiny_gateway, model=MODEL) as caller:
        session: Any = {"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 3}
        await caller.connection.session.update(session=session)

        async def answer(words: int) -> dict[str, Any]:
            await say(caller, "word " * words)
            await caller.connection.response.create()
            done: dict[str, Any] = (await caller.until("response.done"))["response"]
            return done

        words = 50 * 500 // (await answer(50))["usage"]["input_tokens"]
        tokens = []
        for _ in range(8):  # of about 500 tokens, for a model that reads 2,048
            done = await answer(words)
            assert done["status"] in ("completed", "incomplete"), done["status_details"]
            tokens.append(done["usage"]["input_tokens"])
        assert max(tokens) <= 2048
        assert tokens != sorted(tokens), "some turns were left out"
        await caller.connection.session.update(session={"type": "realtime", "truncation": "disabled"})
        ends = [(await answer(words))["status_details"] for _ in range(4)]
        assert ends[-1]["error"]["code"] == "context_length_exceeded"
        assert "error" not in [one["type"] for one in caller.events]


async def test_a_call_of_twenty_spoken_turns_stays_within_its_bounds(tiny_pipeline: RunningPipeline) -> None:
    """The session may hold a megabyte, and hears 2.9: the oldest audio is forgotten, and its transcript stays."""
    most = 1 << 20
    settings = GatewaySettings(realtime=RealtimeSettings(session_bytes=most))
    served = ServedPipeline(MODEL, f"grpc://{tiny_pipeline.endpoint}")
    kind = "conversation.item.input_audio_transcription.completed"
    with serve_gateway(served, settings=settings) as url:
        async with call(url, model=MODEL) as caller:
            audio: Any = {"input": {"transcription": {"model": "whisper-1"}}}
            session: Any = {"type": "realtime", "max_output_tokens": 5, "audio": audio}
            await caller.connection.session.update(session=session)
            for _ in range(20):
                await speak(caller, speech_24k())
                done = (await caller.until("response.done"))["response"]
                assert done["status"] in ("completed", "incomplete"), done["status_details"]
            while [one["type"] for one in caller.events].count(kind) < 20:
                await caller.next()
            written = {one["item_id"]: one["transcript"] for one in caller.events if one["type"] == kind}
            committed = "input_audio_buffer.committed"
            ids = [one["item_id"] for one in caller.events if one["type"] == committed]
            assert sorted(ids) == sorted(written)
            kept = []
            for id in ids:
                await caller.connection.conversation.item.retrieve(item_id=id)
                (part,) = (await caller.until("conversation.item.retrieved"))["item"]["content"]
                assert (part["transcript"] or "") == written[id]
                kept.append(len(base64.b64decode(part.get("audio", ""))))
            assert sum(kept) <= most
            assert [bool(one) for one in kept] == sorted(bool(one) for one in kept), "the oldest is forgotten first"
            assert kept[0] == 0 < kept[-1]
            assert "error" not in [one["type"] for one in caller.events]
