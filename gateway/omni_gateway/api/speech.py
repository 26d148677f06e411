"""POST /v1/audio/speech: speaks a given text, word for word."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_gateway.api.answer import open_answer
from omni_gateway.api.body_route import BodyRoute, check_unsupported
from omni_gateway.api.live import (
    EVENT_STREAM,
    LiveResponse,
    error_event,
    event,
    respond_when_awake,
    run_while_connected,
    wait_awake,
)
from omni_gateway.api.speaking import SpeechStream
from omni_gateway.client_paths import SPEECH
from omni_gateway.context import Call, Gateway, call_of, gateway_of, pipelines_of
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline
from omni_gateway.errors import GatewayError, InvalidRequestError, SpeechCutError, UnsupportedError
from omni_gateway.media.encode import MEDIA_TYPES, AnswerEncoder, Base64Pieces
from omni_gateway.openai.audio_requests import SpeechRequest
from omni_gateway.openai.body import find_unsupported
from omni_gateway.openai.chat_events import finish_reason, read_usage
from omni_gateway.openai.chat_prompt import fold_seed
from omni_gateway.openai.chat_request import voice_name
from omni_proto.client import Event, GenerateArguments

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
    check_unsupported(gateway, call, find_unsupported(body))
    if len(body.input) > gateway.settings.max_speech_chars:
        raise InvalidRequestError(
            f"input holds {len(body.input)} characters, at most {gateway.settings.max_speech_chars} are allowed.",
            param="input",
            code="string_above_max_length",
        )
    if not body.input.strip():
        raise InvalidRequestError("input holds nothing to speak.", param="input")
    call.model, pipeline = find_pipeline(pipelines_of(request), body.model)
    if body.stream_format == "sse" and pipeline.is_away:
        return respond_when_awake(gateway, call, pipeline, lambda: _speak(gateway, call, pipeline, body))
    await wait_awake(gateway, call, pipeline, request.receive)
    # Bytes begin with the first audio: if a stage fails before that, the error still gets an HTTP status.
    return await run_while_connected(request.receive, _speak(gateway, call, pipeline, body))


async def _speak(gateway: Gateway, call: Call, pipeline: ServedPipeline, body: SpeechRequest) -> LiveResponse:
    """Returns the speech once it can begin. Raises GatewayError."""
    facts = await gateway.entries.facts(pipeline)
    call.paths, call.max_model_lens = SPEECH, {facts.stage: facts.max_model_len}
    if not facts.reads_aloud:
        why = f": its entry stage {facts.stage} hears audio and reads no text" if facts.transcribes else ""
        raise UnsupportedError(
            f"The model {call.model!r} does not speak a given text{why}.", param="model", code="invalid_value"
        )
    wanted, aliases = voice_name(body.voice), gateway.voice_aliases(pipeline)
    arguments = GenerateArguments(
        text=PROMPT, modalities=["audio"], voice=facts.pick_voice(wanted, aliases, param="voice")
    )
    if (seed := fold_seed(body.seed)) is not None:
        arguments["seed"] = seed

    async def open_part(text: str) -> AsyncGenerator[Event, None]:
        part: GenerateArguments = {**arguments, "reply": text}
        return await open_answer(gateway, call, ROUTE, pipeline, **part)

    speech = SpeechStream(body.input, open_part, patience_s=gateway.settings.request_seconds)
    as_events = body.stream_format == "sse"
    await speech.begin(accepted=as_events)
    form = body.response_format or "mp3"
    writer = AnswerEncoder(form)
    return LiveResponse(
        stream_events(gateway, speech, writer, facts.answering)
        if as_events
        else stream_bytes(gateway, call, speech, writer),
        media_type=EVENT_STREAM if as_events else MEDIA_TYPES[form],
        send_s=gateway.settings.send_seconds,
        comment_s=gateway.settings.keep_alive_seconds if as_events else None,
        on_end=speech.close,
    )


async def stream_bytes(
    gateway: Gateway, call: Call, speech: SpeechStream, writer: AnswerEncoder
) -> AsyncGenerator[bytes, None]:
    """Yields the encoded audio. After a GatewayError the connection is closed before the body is complete.

    Raises SpeechCutError at the end if words are missing: a complete body would say that nothing is.
    """
    async with aclosing(speech.chunks()) as chunks:
        async for chunk in chunks:
            if data := await writer.add(chunk):
                yield data
    if rest := await writer.finish():
        yield rest
    gateway.metrics.count_cut(ROUTE, speech.cut_stages)
    if speech.cut_stages:
        error = SpeechCutError(f"The speech reached the maximum length of {' and '.join(speech.cut_stages)}.")
        call.error = error.code or ""
        raise error


async def stream_events(
    gateway: Gateway, speech: SpeechStream, writer: AnswerEncoder, answering: str
) -> AsyncGenerator[bytes, None]:
    """Yields OpenAI's events speech.audio.delta, and at the end speech.audio.done or an error.

    speech.audio.done has the finish_reason of chats: "length" if words are missing.
    """
    pieces = Base64Pieces()
    try:
        async with aclosing(speech.chunks()) as chunks:
            async for chunk in chunks:
                if data := pieces.add(await writer.add(chunk)):
                    yield _delta(data)
        if rest := pieces.finish(await writer.finish()):
            yield _delta(rest)
    except GatewayError as error:
        yield error_event(error)
        return
    gateway.metrics.count_cut(ROUTE, speech.cut_stages)
    usage = read_usage(*speech.summaries, answering=answering)
    tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    done = {"type": "speech.audio.done", "finish_reason": finish_reason(speech.cut_stages)}
    yield event({**done, "usage": {**tokens, "total_tokens": sum(tokens.values())}})


def _delta(data: str) -> bytes:
    return event({"type": "speech.audio.delta", "audio": data})
