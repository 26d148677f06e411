"""Compares answers over gRPC with those of transformers, first one request at a time, then all concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from omni_proto.client import AsyncOmniClient, audio_part, image_part
from support.engines.omni_stages import AUDIO_TOLERANCE
from support.media.samples import encode_png, encode_wav
from support.models.reference import ReferencePrompt

Case = TypeVar("Case")

EXACT: dict[str, Any] = {
    "encoding": "pcm_f32le",
    "include_token_ids": True,
    "include_codec_tokens": True,
    "timeout": 120,
}
"""Options of a request whose answer is to be compared."""


class Expected(Protocol):
    """The parts of a reference answer that every model family has."""

    prompt_token_ids: list[int]
    thinker_token_ids: list[int]
    text: str
    waveform: torch.Tensor


def media_parts(prompt: ReferencePrompt) -> list[Any]:
    """Returns a chat message's parts: one for each image of the prompt, then one for each audio clip."""
    images = [image_part(encode_png(image)) for image in prompt.images]
    return [*images, *(audio_part(encode_wav(track)) for track in prompt.audios)]


def check_text_and_audio(result: Any, expected: Expected) -> None:
    """Checks prompt, text and audio. Each family's tests compare codec tokens themselves."""
    assert result.prompt_token_ids["thinker"] == expected.prompt_token_ids
    assert result.token_ids["thinker"] == expected.thinker_token_ids
    assert result.text == expected.text
    assert (result.sample_rate_hz, result.channels) == (24_000, 1)
    audio = torch.from_numpy(np.frombuffer(result.audio, "<f4").copy())
    torch.testing.assert_close(audio, expected.waveform, atol=AUDIO_TOLERANCE, rtol=0)


async def check_each_alone_and_all_at_once(
    endpoint: str,
    cases: Mapping[str, Case],
    generate: Callable[[AsyncOmniClient, Case], Awaitable[Any]],
    check: Callable[[str, Any], None],
) -> None:
    """Sends each case by itself, then all cases concurrently. Calls check(name, result) for every answer."""
    async with AsyncOmniClient(endpoint) as client:
        for name, case in cases.items():
            check(name, await generate(client, case))
        together = await asyncio.gather(*(generate(client, case) for case in cases.values()))
    for name, result in zip(cases, together, strict=True):
        check(name, result)
