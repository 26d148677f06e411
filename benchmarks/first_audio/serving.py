"""Sends concurrent requests for audio of a given length to a pipeline, and records what each client hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.first_audio.playback import Chunk, Playback, count_clicks, play
from benchmarks.pipeline.work import PROMPTS, SEED
from omni_proto.client import AsyncOmniClient, AudioChunk

CODES_PER_SECOND = 50
"""Codec tokens that Qwen2.5-Omni's talker makes for a second of audio."""
THINKER_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Heard:
    """The playback of one answer, as a client hears it."""

    playback: Playback
    done: float
    """Seconds until the call ended."""
    clicks: int


def sampling_of(seconds: float) -> Mapping[str, Mapping[str, Any]]:
    """Returns the sampling that makes a pipeline of Qwen2.5-Omni speak for exactly `seconds`."""
    codes = round(seconds * CODES_PER_SECOND)
    return {
        "thinker": {"temperature": 0, "max_tokens": THINKER_TOKENS, "ignore_eos": True},
        "talker": {"temperature": 0, "max_tokens": codes, "ignore_eos": True, "repetition_penalty": 1.0},
    }


async def ask(client: AsyncOmniClient, count: int, sampling: Mapping[str, Mapping[str, Any]]) -> list[Heard]:
    """Send `count` requests at the same time. Returns the playback of each.

    Raises OmniRequestError, or ValueError if a request gets no audio.
    """
    began = time.perf_counter()

    async def one(index: int) -> Heard:
        chunks: list[Chunk] = []
        parts: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        async for event in client.generate(
            text=PROMPTS[index % len(PROMPTS)], sampling=sampling, seed=SEED + index, encoding="pcm_f32le", timeout=900
        ):
            if isinstance(event, AudioChunk):
                part = np.frombuffer(event.data, "<f4")
                chunks.append(Chunk(time.perf_counter() - began, len(part) / event.sample_rate_hz))
                parts.append(part)
        borders = np.cumsum([len(part) for part in parts[:-1]]).tolist()
        return Heard(play(chunks), time.perf_counter() - began, count_clicks(np.concatenate(parts), borders))

    return list(await asyncio.gather(*(one(index) for index in range(count))))
