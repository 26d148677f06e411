"""Converts the audio of sessions: G.711, sample rates, and WAV for the pipeline. FFmpeg (PyAV) does the work."""

from __future__ import annotations

from typing import Final, Literal, cast

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from omni_gateway.media.encode import wav_header
from omni_gateway.realtime.state.config import AudioFormat

_G711: Final = {"audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}


def decode_g711(data: bytes, format: AudioFormat) -> bytes:
    """Returns the samples of G.711 (s16le), or the data if they are samples already."""
    if format.type not in _G711 or not data:
        return data
    codec = _open_codec(format, "r")
    frames = [*codec.decode(av.Packet(data)), *codec.decode(None)]
    return b"".join(_samples_of(frame) for frame in frames)


def to_wav(data: bytes, format: AudioFormat) -> bytes:
    """Returns a WAV file with the audio."""
    samples = decode_g711(data, format)
    return wav_header(format.rate_hz, 1, len(samples)) + samples


class Resampler:
    """Converts samples (s16le) of one stream to another rate and one channel."""

    def __init__(self, from_hz: int, to_hz: int, channels: int = 1) -> None:
        self._from_hz = from_hz
        self._layout = "mono" if channels == 1 else "stereo"
        self._channels = channels
        self._is_needed = from_hz != to_hz or channels != 1
        self._resampler = AudioResampler(format="s16", layout="mono", rate=to_hz) if self._is_needed else None

    def add(self, data: bytes) -> bytes:
        """Returns the samples that are ready; may be empty. data: complete samples."""
        samples = len(data) // (2 * self._channels)
        if self._resampler is None or not samples:
            return data
        frame = AudioFrame("s16", self._layout, samples)
        frame.planes[0].update(data.ljust(frame.planes[0].buffer_size, b"\0"))
        frame.sample_rate = self._from_hz
        return b"".join(_samples_of(one) for one in self._resampler.resample(frame))

    def finish(self) -> bytes:
        """Returns the rest."""
        return b"" if self._resampler is None else b"".join(map(_samples_of, self._resampler.resample(None)))


class OutputAudio:
    """Converts the audio of one answer to the format of the session."""

    def __init__(self, format: AudioFormat) -> None:
        self._format = format
        self._resampler: Resampler | None = None
        self._codec = _open_codec(format, "w") if format.type in _G711 else None

    def add(self, data: bytes, rate_hz: int, channels: int) -> bytes:
        """Returns the audio that is ready. data: samples, s16le, channels interleaved."""
        if self._resampler is None:
            self._resampler = Resampler(rate_hz, self._format.rate_hz, channels)
        return self._encode(self._resampler.add(data))

    def finish(self) -> bytes:
        """Returns the rest."""
        return b"" if self._resampler is None else self._encode(self._resampler.finish())

    def _encode(self, samples: bytes) -> bytes:
        if self._codec is None or not samples:
            return samples
        frame = AudioFrame("s16", "mono", len(samples) // 2)
        frame.planes[0].update(samples.ljust(frame.planes[0].buffer_size, b"\0"))
        frame.sample_rate = self._format.rate_hz
        return b"".join(bytes(packet) for packet in self._codec.encode(frame))


def _open_codec(format: AudioFormat, mode: Literal["r", "w"]) -> AudioCodecContext:
    codec = cast(AudioCodecContext, av.CodecContext.create(av.Codec(_G711[format.type], mode), mode))
    codec.sample_rate = format.rate_hz
    codec.layout = "mono"
    codec.format = "s16"
    return codec


def _samples_of(frame: AudioFrame) -> bytes:
    return bytes(frame.planes[0])[: 2 * frame.samples]
