"""The calls of the pipeline for a session, by the code of chat completions and transcriptions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, cast

from fastapi.exceptions import RequestValidationError

from omni_gateway.api.answer import open_answer
from omni_gateway.api.body_route import validate_body
from omni_gateway.api.chat import read_arguments
from omni_gateway.api.errors import describe_validation
from omni_gateway.api.transcriptions import Task, build_arguments, check_abilities, count_tokens
from omni_gateway.client_paths import TRANSCRIPT, ClientPaths
from omni_gateway.context import Call, Gateway, Share
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline
from omni_gateway.errors import GatewayError, InternalError
from omni_gateway.media.read import read_media
from omni_gateway.openai.audio_requests import TranscriptionRequest
from omni_gateway.openai.chat_events import read_usage
from omni_gateway.openai.chat_messages import AudioPart
from omni_gateway.openai.chat_prompt import list_media
from omni_gateway.openai.chat_request import ChatRequest
from omni_gateway.openai.transcripts import Trimmer
from omni_gateway.realtime.audio import OutputAudio, to_wav
from omni_gateway.realtime.state.config import Abilities, Config, Transcription, read_writer
from omni_gateway.realtime.state.effects import Ask, Heard
from omni_gateway.realtime.state.items import Content
from omni_gateway.realtime.state.prompt import Prompt
from omni_gateway.realtime.state.response import Called, Ended, Output, Said, Spoke, Wrote
from omni_proto.client import (
    AudioChunk,
    Event,
    MediaPart,
    StageFinished,
    Summary,
    TextDelta,
    ToolCallDelta,
    TranscriptDelta,
    audio_part,
)

ROUTE: Final = "/v1/realtime"
TRANSCRIPT_PRIORITY: Final = 1
"""Behind the answers, whose priority is 0: nobody waits for a transcript."""
_SAMPLE_BYTES: Final = 2


def begin_call(session: Call, number: int, share: Share) -> Call:
    """Returns the facts of a call of the pipeline. number: of the calls of the session. share: of its memory."""
    return replace(
        session,
        id=f"{session.id}-{number}",
        body_share=share,
        media_share=share,
        started=time.monotonic(),
        audio_seconds=0.0,
        ignored=[],
        first_seen=set(),
        error="",
    )


async def ask_pipeline(gateway: Gateway, call: Call, ask: Ask) -> AsyncGenerator[Output, None]:
    """Yields what the pipeline returns for a response; the last one is Ended. Raises GatewayError."""
    pipeline, facts = await _find(gateway, call)
    prompt = put_unheard_last(ask.prompt) if facts.transcribes else ask.prompt
    prompt = recall_heard(prompt, count_recalled(prompt, facts))
    body = read_body(prompt)
    call.rights.check(body)
    call.paths = ClientPaths(
        prompt="conversation",
        voice="session.audio.output.voice",
        parts=prompt.paths,
        max_tokens="max_output_tokens",
        has_messages=True,
        own=("max_tokens",),
    )
    call.max_model_lens = {facts.stage: facts.max_model_len}
    media = await _read_media(gateway, call, body, prompt)
    arguments = await read_arguments(gateway, call, pipeline, facts, body, media)
    async with aclosing(await open_answer(gateway, call, ROUTE, pipeline, **arguments)) as events:
        async for output in convert(gateway, events, ask.config, facts, prompt.audio[-1] if prompt.audio else None):
            yield output


def count_recalled(prompt: Prompt, facts: EntryFacts) -> int:
    """Returns how much of the prompt's audio, from the oldest on, the pipeline shall not hear again.

    An entry that writes down what it hears hears only the last message, and that one only if its words are not known
    yet: the stage that answers takes them as text. Other ones hear the newest that limits.maxMediaPerRequest allows.
    The number grows by half of that limit at a time: between these turns the conversation begins as before, and what
    the stage has cached of it is used.
    """
    contents = [message["content"] for message in prompt.body["messages"]]
    kinds = [[part["type"] for part in content] if isinstance(content, list) else [] for content in contents]
    if facts.transcribes:
        earlier = sum(one.count("input_audio") for one in kinds[:-1])
        passes_on = facts.answering not in ("", facts.stage)
        return len(prompt.audio) if passes_on and all(one.text.strip() for one in prompt.audio[earlier:]) else earlier
    images = sum(len(one) - one.count("input_audio") - one.count("text") for one in kinds)
    room = max(1, facts.max_media - images)
    too_many, step = len(prompt.audio) - room, max(1, room // 2)
    return min(-(-too_many // step) * step, len(prompt.audio) - 1) if facts.max_media and too_many > 0 else 0


def put_unheard_last(prompt: Prompt) -> Prompt:
    """Returns the prompt with the user's last speech behind the system's and the user's written messages that follow
    it, if it has not been written down: an entry that writes down what it hears hears only the last message."""
    messages = prompt.body["messages"]
    spoken = [
        number
        for number, message in enumerate(messages)
        if isinstance(message["content"], list) and message["content"][-1]["type"] == "input_audio"
    ]
    if not spoken or prompt.audio[-1].text.strip():
        return prompt
    last = spoken[-1]
    later = range(last + 1, len(messages))
    if not later or any(messages[number]["role"] not in ("system", "user") for number in later):
        return prompt
    order = [*range(last), *later, last]
    body = {**prompt.body, "messages": [messages[number] for number in order]}
    return Prompt(body, prompt.audio, [prompt.paths[number] for number in order])


def recall_heard(prompt: Prompt, count: int) -> Prompt:
    """Returns the prompt in which the first `count` pieces of audio are the words in them. Without words, they are left
    out: nobody wrote them down, or the answer was interrupted before."""
    if not count:
        return prompt
    recalled, audio = Prompt({**prompt.body, "messages": []}), enumerate(prompt.audio)
    for message, paths in zip(prompt.body["messages"], prompt.paths, strict=True):
        parts, content = [], message["content"]
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] == "input_audio":
                number, heard = next(audio)
                if number >= count:
                    recalled.audio.append(heard)
                elif heard.text.strip():
                    part = {"type": "text", "text": heard.text.strip()}
                else:
                    continue
            parts.append((part, paths[place]))
        if isinstance(content, list):
            if not parts:
                continue
            message, paths = {**message, "content": [part for part, _ in parts]}, [path for _, path in parts]
        recalled.body["messages"].append(message)
        recalled.paths.append(paths)
    return recalled


def read_body(prompt: Prompt) -> ChatRequest:
    """Returns the prompt as the body of a chat completion. Raises InvalidRequestError."""
    try:
        return cast(ChatRequest, validate_body(prompt.body, ChatRequest))
    except RequestValidationError as error:
        raise describe_validation(error) from None


async def _read_media(gateway: Gateway, call: Call, body: ChatRequest, prompt: Prompt) -> list[MediaPart]:
    audio, found = iter(prompt.audio), []
    for path, part in list_media(body.messages):
        if isinstance(part, AudioPart):
            content = next(audio)
            call.media_share.add(2 * len(content.audio))
            found.append(audio_part(to_wav(content.audio, content.format)))
        else:
            found += await read_media([(path, part)], gateway.settings.media, call.media_share.add)
    return found


async def convert(
    gateway: Gateway,
    events: AsyncIterator[Event],
    config: Config,
    facts: EntryFacts,
    audio: Content | None = None,
) -> AsyncGenerator[Output, None]:
    """Yields the events of a call of the pipeline as those of a response. Raises InternalError without a Summary.

    audio: that of the prompt's last message.
    """
    output = OutputAudio(config.audio.output.format)
    heard = ""
    async for item in events:
        if isinstance(item, TextDelta | ToolCallDelta) and item.stage != facts.answering:
            continue
        if isinstance(item, TranscriptDelta):
            heard += item.text
        elif isinstance(item, StageFinished) and item.stage == facts.stage and heard and audio is not None:
            yield Wrote(audio, heard.strip())
        elif isinstance(item, TextDelta):
            yield Said(item.text)
        elif isinstance(item, ToolCallDelta):
            yield Called(item.index, item.id, item.name, item.arguments)
        elif isinstance(item, AudioChunk):
            data = output.add(item.data, item.sample_rate_hz, item.channels)
            words = [(1000 * one.end_sample / item.sample_rate_hz, one.characters) for one in item.spoken]
            yield Spoke(data, 1000 * len(item.data) / (_SAMPLE_BYTES * item.channels * item.sample_rate_hz), words)
        elif isinstance(item, Summary):
            if rest := output.finish():
                yield Spoke(rest, 0.0)
            gateway.metrics.count_cut(ROUTE, item.cut_stages)
            cut = [stage for stage in item.cut_stages if not (facts.has_transcript and stage == facts.stage)]
            yield Ended(read_usage(item, answering=facts.answering), bool(cut))
            return
    raise InternalError("The answer ended without a summary.")


async def write_down(
    gateway: Gateway, call: Call, content: Content, settings: Transcription
) -> AsyncGenerator[Heard, None]:
    """Yields what the pipeline writes down of a user's audio. Raises GatewayError."""
    call.model = settings.model or call.model
    pipeline, facts = await _find(gateway, call)
    call.paths = TRANSCRIPT
    call.media_share.add(2 * len(content.audio))
    form = TranscriptionRequest(
        file=to_wav(content.audio, content.format), model=call.model, prompt=settings.prompt or None
    )
    task = Task(ROUTE, "transcribe", settings.language or "", stream=True)
    check_abilities(form, task, facts, call.model)
    arguments = build_arguments(form, task, facts)
    arguments["priority"] = TRANSCRIPT_PRIORITY
    trimmer = Trimmer()
    usage: Mapping[str, Any] | None = None
    async with aclosing(await open_answer(gateway, call, ROUTE, pipeline, **arguments)) as events:
        async for item in events:
            if isinstance(item, TextDelta | TranscriptDelta) and item.stage == facts.stage:
                for text in trimmer.add(item.text):
                    yield Heard(text)
            elif isinstance(item, Summary):
                usage = count_tokens(item)
    yield Heard(trimmer.text, usage or {"type": "duration", "seconds": 0.0})


async def learn_writer(gateway: Gateway, call: Call, abilities: Abilities, wishes: Mapping[str, Any]) -> None:
    """Find out whether another pipeline, which a client's wishes name, writes down what it hears."""
    name = read_writer(wishes)
    if name is None or name in abilities.writers:
        return
    with contextlib.suppress(GatewayError):  # the session then shows that it writes nothing down
        model, pipeline = find_pipeline(call.rights.filter(gateway.pipelines.list_pipelines()), name)
        if Abilities(model, await gateway.entries.facts(pipeline), {}).transcribes:
            # Its id too, because later updates begin with the session that the client was sent.
            abilities.writers[name] = abilities.writers[model] = model


async def _find(gateway: Gateway, call: Call) -> tuple[ServedPipeline, EntryFacts]:
    """Returns the pipeline as it is now: a session may last longer than a pod, and its pipeline may sleep meanwhile.
    Raises GatewayError."""
    _, pipeline = find_pipeline(call.rights.filter(gateway.pipelines.list_pipelines()), call.model)
    await gateway.holds.wait(pipeline, call.holder)
    return pipeline, await gateway.entries.facts(pipeline)
