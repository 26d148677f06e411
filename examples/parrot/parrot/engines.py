"""The engines of both components. They run in the stage server's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import TEXT_SCHEMA
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import (
    EdgeInput,
    EdgeStream,
    FinishReason,
    StageRequest,
    StageStep,
    TextPart,
    UserPrompt,
)
from omni_stage.models.shared.text.edge import read_text, spoken_parts, text_rows
from omni_stage.models.simple_engine import SimpleComponent, SimpleEngine
from parrot.manifest import MAX_WORD_BYTES, SAMPLE_RATE_HZ, VOICE, WRITER

WORD_S = 0.02
"""Seconds that the writer takes for a word."""
LETTER_SAMPLES = 1200


class Writer(SimpleEngine):
    """Repeats what it is told, word by word."""

    def __init__(self, config: StageConfig) -> None:
        super().__init__(config, SimpleComponent(WRITER, input_schema=TEXT_SCHEMA, output_schema=TEXT_SCHEMA))

    async def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Yields a step for each word."""
        words = find_text(request).split()
        if not words:
            yield StageStep(finish_reason=FinishReason.EMPTY_INPUT)
            return
        spoken = words[: request.sampling.max_tokens or self.max_model_len]
        for number, word in enumerate(spoken):
            text = word.encode()[: MAX_WORD_BYTES - 1].decode(errors="ignore") + " "
            is_last = number == len(spoken) - 1
            yield StageStep(
                text=text,
                token_ids=[number],
                prompt_token_ids=None if number else [0] * len(words),
                tensors=text_rows(text) if request.want_tensors else {},
                finish_reason=None if not is_last else _reason(len(spoken), len(words)),
            )
            await asyncio.sleep(WORD_S)


def find_text(request: StageRequest) -> str:
    """Returns the text that another stage wrote, or that the client sent. Raises InvalidRequestError."""
    if isinstance(request.source, EdgeInput):
        return read_text(request.source.tensors)
    if not isinstance(request.source, UserPrompt) or (request.source.text is None and not request.source.messages):
        raise InvalidRequestError("start.text: component parrot/writer repeats a text; send one", field="start.text")
    if request.source.text is not None:
        return request.source.text
    parts = [part for message in request.source.messages or () for part in message.parts]
    return " ".join(part.text for part in parts if isinstance(part, TextPart))


def _reason(written: int, wanted: int) -> FinishReason:
    return FinishReason.STOP if written == wanted else FinishReason.LENGTH


class Voice(SimpleEngine):
    """Speaks each sentence while the next one is being written."""

    def __init__(self, config: StageConfig) -> None:
        super().__init__(config, SimpleComponent(VOICE, input_schema=TEXT_SCHEMA))

    async def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Yields a step for each sentence, and for the first clause."""
        if not isinstance(request.source, EdgeInput | EdgeStream):
            raise InvalidRequestError("component parrot/voice reads another stage's text, not a prompt")
        reason = FinishReason.EMPTY_INPUT
        async for part in spoken_parts(request.source):
            yield StageStep(audio=await self.work(speak, part))
            reason = FinishReason.STOP
        yield StageStep(finish_reason=reason)


def speak(text: str) -> np.ndarray:
    """Returns a tone for each letter: float32 [samples]."""
    seconds = np.arange(LETTER_SAMPLES) / SAMPLE_RATE_HZ
    tones = [0.3 * np.sin(2 * np.pi * (200 + 10 * (ord(letter) % 64)) * seconds) for letter in text]
    return np.concatenate(tones).astype(np.float32)
