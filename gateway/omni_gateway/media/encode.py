"""Encodes audio for an answer, piece by piece. Each format returns encoded audio as early as it can.

pcm is passed through, and wav gets a header; neither changes a sample. FFmpeg (PyAV) encodes the other formats.
"""

from __future__ import annotations

import asyncio
import base64
import io
import struct
from typing import Final, Protocol

import av
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream

from omni_gateway.errors import InternalError
from omni_proto.client import AudioChunk

MEDIA_TYPES: Final = {
    "pcm": "audio/pcm",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}
SILENT_RATE_HZ: Final = 24_000
"""Sample rate of a file whose answer had no audio."""
_SILENT_S: Final = 0.02
_UNKNOWN_LENGTH: Final = 0xFFFFFFFF
_RATES: Final = {
    "opus": (8000, 12000, 16000, 24000, 48000),
    "mp3": (16000, 22050, 24000, 32000, 44100, 48000),
    "aac": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 64000, 88200, 96000, 48000),
}
"""Sample rates that an encoder accepts. Audio with another rate is resampled to the last of them."""
_CODECS: Final = {
    "mp3": ("mp3", "libmp3lame", {}, {"write_xing": "0", "id3v2_version": "0"}),
    "opus": ("ogg", "libopus", {"application": "audio", "frame_duration": "20"}, {"page_duration": "20000"}),
    "flac": ("flac", "flac", {}, {}),
    "aac": ("adts", "aac", {}, {}),
}
"""By format: FFmpeg's container and codec, the codec's options and the container's options. MP3 is written without its
length header, because the length is not known yet. Ogg pages last 20 ms, so that no audio waits for a page to fill."""
_BIT_RATES: Final = {"mp3": 96_000, "opus": 48_000, "aac": 96_000}
_GROUP: Final = 6
"""Bytes are encoded in multiples of this: base64 needs no padding after 3 bytes, and a 16-bit sample has 2."""


class Encoder(Protocol):
    """Encodes one piece of audio after the other."""

    media_type: str

    def encode(self, pcm: bytes) -> bytes:
        """Returns the encoded audio that is ready; may be empty. pcm: complete frames, s16le, channels interleaved."""
        ...

    def finish(self) -> bytes:
        """Returns the rest. Nothing may be encoded afterwards."""
        ...


class PcmEncoder:
    """Passes samples through unchanged."""

    media_type = MEDIA_TYPES["pcm"]

    def encode(self, pcm: bytes) -> bytes:
        """Returns pcm."""
        return pcm

    def finish(self) -> bytes:
        """Returns nothing."""
        return b""


class WavEncoder:
    """Writes a WAV whose header gives the length as unknown (0xFFFFFFFF), as other streaming programs do."""

    media_type = MEDIA_TYPES["wav"]

    def __init__(self, rate_hz: int, channels: int) -> None:
        self._header = wav_header(rate_hz, channels, None)

    def encode(self, pcm: bytes) -> bytes:
        """Returns the samples; the first call puts the header before them."""
        header, self._header = self._header, b""
        return header + pcm

    def finish(self) -> bytes:
        """Returns the header if there was no audio."""
        header, self._header = self._header, b""
        return header


class AvEncoder:
    """Encodes MP3, Opus in Ogg, FLAC, or AAC in ADTS."""

    def __init__(self, name: str, rate_hz: int, channels: int, file: io.BytesIO | None = None) -> None:
        """name: a key of MEDIA_TYPES other than pcm and wav. file: if given, it gets all output, and encode and finish
        return b"".

        Raises InternalError for more than two channels.
        """
        container, codec, codec_options, container_options = _CODECS[name]
        self.media_type = MEDIA_TYPES[name]
        self._channels = channels
        self._rate_hz = rate_hz
        self._layout = "mono" if channels == 1 else "stereo"
        if channels not in (1, 2):
            raise InternalError(f"{name} is not written with {channels} channels; use wav or pcm")
        rates = _RATES.get(name, (rate_hz,))
        target_hz = rate_hz if rate_hz in rates else rates[-1]
        self._sink = _Sink()
        self._samples = 0
        options = {"flush_packets": "1", **container_options} if file is None else {}
        self._file = av.open(self._sink if file is None else file, "w", format=container, options=options)
        stream = self._file.add_stream(codec, rate=target_hz, options=dict(codec_options))
        if not isinstance(stream, AudioStream):
            raise InternalError(f"{codec} is not an audio codec")
        stream.layout = self._layout
        if name in _BIT_RATES:
            stream.bit_rate = _BIT_RATES[name]
        self._stream = stream
        stream.codec_context.open()
        self._resampler = AudioResampler(
            format=stream.codec_context.format,
            layout=self._layout,
            rate=target_hz,
            frame_size=stream.codec_context.frame_size or None,
        )

    def encode(self, pcm: bytes) -> bytes:
        """See Encoder."""
        self._put(pcm)
        return self._sink.take()

    def _put(self, pcm: bytes) -> None:
        samples = len(pcm) // (2 * self._channels)
        if samples:
            frame = AudioFrame("s16", self._layout, samples)
            frame.planes[0].update(_padded(pcm, frame.planes[0].buffer_size))
            frame.sample_rate = self._rate_hz
            frame.pts = self._samples
            self._samples += samples
            self._write(frame)

    def finish(self) -> bytes:
        """See Encoder. A file without samples gets a moment of silence: without a frame, it would have no bytes."""
        if not self._samples:
            self._put(bytes(2 * self._channels * round(self._rate_hz * _SILENT_S)))
        self._write(None)
        for packet in self._stream.encode(None):
            self._file.mux(packet)
        self._file.close()
        return self._sink.take()

    def _write(self, frame: AudioFrame | None) -> None:
        for ready in self._resampler.resample(frame):
            for packet in self._stream.encode(ready):
                self._file.mux(packet)


def make_encoder(name: str, rate_hz: int, channels: int) -> Encoder:
    """Returns an encoder for a key of MEDIA_TYPES, or for pcm16 (= pcm). Raises InternalError; KeyError for another
    name."""
    if name in ("pcm", "pcm16"):
        return PcmEncoder()
    return WavEncoder(rate_hz, channels) if name == "wav" else AvEncoder(name, rate_hz, channels)


def encode_whole(name: str, pcm: bytes, rate_hz: int, channels: int) -> bytes:
    """Returns the complete audio of an answer as one file. The file contains its duration if the format has a field for
    it. Raises as make_encoder does."""
    if name == "wav":
        return wav_header(rate_hz, channels, len(pcm)) + pcm
    if name in ("pcm", "pcm16"):
        return pcm
    whole = io.BytesIO()
    encoder = AvEncoder(name, rate_hz, channels, whole)
    encoder.encode(pcm)
    encoder.finish()
    return whole.getvalue()


def wav_header(rate_hz: int, channels: int, data_bytes: int | None) -> bytes:
    """Returns the 44 bytes before the samples (s16le). data_bytes: size of the samples; None if not known yet."""
    frame = 2 * channels
    length = _UNKNOWN_LENGTH if data_bytes is None else data_bytes
    riff = _UNKNOWN_LENGTH if data_bytes is None else min(data_bytes + 36, _UNKNOWN_LENGTH)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate_hz, rate_hz * frame, frame, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + form + struct.pack("<4sI", b"data", length)


class _Sink(io.RawIOBase):
    """A file that cannot seek, so FFmpeg writes no header that it would have to correct later."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        """Returns what was written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _padded(pcm: bytes, size: int) -> bytes:
    return pcm.ljust(size, b"\0")


class AnswerEncoder:
    """Encodes the audio of one answer. The first chunk gives the sample rate and channels of the encoder."""

    def __init__(self, name: str) -> None:
        """name: one of MEDIA_TYPES, or pcm16."""
        self._name = name
        self._encoder: Encoder | None = None

    async def add(self, chunk: AudioChunk) -> bytes:
        """Returns the encoded audio that is ready; may be empty. Raises GatewayError."""
        if self._encoder is None:
            self._encoder = make_encoder(self._name, chunk.sample_rate_hz, chunk.channels)
        if isinstance(self._encoder, PcmEncoder | WavEncoder):
            return self._encoder.encode(chunk.data)
        return await asyncio.to_thread(self._encoder.encode, chunk.data)

    async def finish(self) -> bytes:
        """Returns the rest of the encoded audio. Without any chunk, it is a valid file of silence."""
        if self._encoder is None:
            self._encoder = make_encoder(self._name, SILENT_RATE_HZ, 1)
        return await asyncio.to_thread(self._encoder.finish)


class Base64Pieces:
    """Encodes pieces of a file so that their texts together are the base64 of the file.

    Clients that collect a stream join these texts: openai-python's `stream()`, and LangChain, when chunks are added.
    Padding inside the joined text would end it for most decoders.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> str:
        """Returns the text of the next piece, which may be empty: up to 5 bytes wait for the next one."""
        data = self._rest + data
        end = len(data) - len(data) % _GROUP
        self._rest = data[end:]
        return base64.b64encode(data[:end]).decode()

    def finish(self, data: bytes) -> str:
        """Returns the text of the bytes that waited and of the last piece."""
        return base64.b64encode(self._rest + data).decode()
