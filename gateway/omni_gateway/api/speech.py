"""POST /v1/audio/speech: speaks a given text, word for word."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_gateway.api.answer import AudioWriter, open_answer
from omni_gateway.api.body_route import BodyRoute
from omni_gateway.api.context import call_of, gateway_of, pipelines_of
from omni_gateway.api.ignored import check_unread
from omni_gateway.api.live import EVENT_STREAM, LiveResponse, error_event, event, run_until_gone
from omni_gateway.client_paths import SPEECH
from omni_gateway.entries.pipelines import find_pipeline
from omni_gateway.errors import GatewayError, InternalError, InvalidRequestError, UnsupportedError
from omni_gateway.media.encode import MEDIA_TYPES
from omni_gateway.openai.base64_pieces import Base64Pieces
from omni_gateway.openai.chat_events import read_usage
from omni_gateway.openai.chat_prompt import fold_seed
from omni_gateway.openai.chat_request import VoiceId
from omni_gateway.openai.speech_request import SpeechRequest, find_unread
from omni_gateway.openai.voices import pick_voice
from omni_proto.client import AudioChunk, Event, GenerateArguments, Summary

router = APIRouter(tags=["speech"], route_class=BodyRoute)
ROUTE: Final = "/v1/audio/speech"
PROMPT: Final = "Read the text aloud."
"""The prompt before the given reply. The model speaks the words of the reply; the prompt affects only the tone."""


@router.post(
    ROUTE,
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in (*MEDIA_TYPES.values(), "text/event-stream")}}},
)
async def create_speech(request: Request, body: SpeechRequest) -> Response:
    """Speaks a text. The audio is sent while it is generated: as bytes, or as server-sent events."""
    gateway, call = gateway_of(request), call_of(request)
    check_unread(gateway, call, find_unread(body))
    if len(body.input) > gateway.settings.max_speech_chars:
        raise InvalidRequestError(
            f"input holds {len(body.input)} characters, at most {gateway.settings.max_speech_chars} are allowed.",
            param="input",
            code="string_above_max_length",
        )
    if not body.input.strip():
        raise InvalidRequestError("input holds nothing to speak.", param="input")
    key, pipeline = find_pipeline(pipelines_of(request), body.model)
    call.model = key
    facts = await gateway.entries.facts(pipeline)
    call.paths, call.max_model_lens = SPEECH, {facts.stage: facts.max_model_len}
    if not facts.reads_aloud:
        raise UnsupportedError(f"The model {key!r} does not speak a given text.", param="model", code="invalid_value")
    wanted = body.voice.id if isinstance(body.voice, VoiceId) else body.voice or ""
    aliases = pipeline.voice_aliases or gateway.settings.voice_aliases
    arguments = GenerateArguments(
        text=PROMPT,
        reply=body.input,
        modalities=["audio"],
        voice=pick_voice(wanted, facts.voices, aliases, param="voice"),
    )
    if (seed := fold_seed(body.seed)) is not None:
        arguments["seed"] = seed
    events = await run_until_gone(request.receive, open_answer(gateway, call, ROUTE, pipeline, **arguments))
    form = body.response_format or "mp3"
    writer = AudioWriter(form)
    if body.stream_format == "sse":
        return LiveResponse(
            stream_events(events, writer),
            media_type=EVENT_STREAM,
            send_s=gateway.settings.send_seconds,
            comment_s=gateway.settings.keep_alive_seconds,
        )
    chunks = stream_bytes(events, writer)
    try:
        # Read before the answer begins: if a stage fails before the first audio, the error still gets an HTTP status.
        first = await run_until_gone(request.receive, anext(chunks, b""))
    except BaseException:
        await chunks.aclose()
        raise
    return LiveResponse(_after(first, chunks), media_type=MEDIA_TYPES[form], send_s=gateway.settings.send_seconds)


async def stream_bytes(events: AsyncGenerator[Event, None], writer: AudioWriter) -> AsyncGenerator[bytes, None]:
    """Yields the encoded audio. After a GatewayError the connection is closed before the body is complete."""
    async with aclosing(events):
        async for item in events:
            if isinstance(item, AudioChunk) and (data := await writer.add(item)):
                yield data
    if rest := await writer.finish():
        yield rest


async def stream_events(events: AsyncGenerator[Event, None], writer: AudioWriter) -> AsyncGenerator[bytes, None]:
    """Yields OpenAI's events speech.audio.delta, and at the end speech.audio.done or an error."""
    pieces = Base64Pieces()
    async with aclosing(events):
        try:
            async for item in events:
                if isinstance(item, AudioChunk) and (data := pieces.add(await writer.add(item))):
                    yield _delta(data)
                elif isinstance(item, Summary):
                    if rest := pieces.finish(await writer.finish()):
                        yield _delta(rest)
                    usage = read_usage(item)
                    tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
                    yield event(
                        {
                            "type": "speech.audio.done",
                            "usage": {**tokens, "total_tokens": sum(tokens.values())},
                        }
                    )
                    return
            raise InternalError("The answer ended without a summary.")
        except GatewayError as error:
            yield error_event(error)


def _delta(data: str) -> bytes:
    return event({"type": "speech.audio.delta", "audio": data})


async def _after(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        if first:
            yield first
        async for chunk in chunks:
            yield chunk
