"""Decodes MP3 and Opus of requests to WAV, because stages read only WAV and FLAC. FFmpeg never guesses the format."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

import av
from av.audio.resampler import AudioResampler
from av.container import InputContainer

from omni_gateway.errors import InvalidMediaError, TooLargeError
from omni_gateway.media.encode import wav_header

DEMUXERS: Final = {"mp3": "mp3", "opus": "ogg"}
"""FFmpeg's name of the demuxer, by OpenAI's name of the format. It is passed to FFmpeg, which would otherwise guess a
demuxer from bytes that may be hostile."""
CODECS: Final = {"mp3": ("mp3", "mp3float"), "opus": ("opus", "libopus")}
_SYNC: Final = 0xE0
"""The upper three bits of an MPEG frame's second byte are set, after a first byte of 255."""
_LAYER: Final = 0x06
"""The bits of the second byte with the layer. MP3 has some of them set, AAC none."""
MAX_RATE_HZ: Final = 48_000

Hold = Callable[[int], None]
"""Counts bytes that will be kept, see Share.add."""


def find_form(data: bytes) -> str:
    """Returns the format that the first bytes show: a key of DEMUXERS, or "" for any other, such as WAV and FLAC."""
    if data.startswith(b"OggS"):
        return "opus"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & _SYNC == _SYNC and data[1] & _LAYER
    return "mp3" if is_frame or data.startswith(b"ID3") else ""


def to_wav(data: bytes, form: str, *, param: str, max_seconds: int, hold: Hold) -> bytes:
    """Returns a mono WAV at the file's sample rate. form: a key of DEMUXERS. hold counts bytes before they are
    kept, on the calling thread.

    Decoding stops after max_seconds of audio, because a small file may hold hours of silence. Raises InvalidMediaError;
    TooLargeError for longer audio; the errors of hold.
    """
    try:
        with av.open(io.BytesIO(data), "r", format=DEMUXERS[form]) as container:
            return _decode(container, form, param, max_seconds, hold)
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise InvalidMediaError(f"{param} cannot be decoded as {form}.", param=param) from error


def _decode(container: InputContainer, form: str, param: str, max_seconds: int, hold: Hold) -> bytes:
    stream = container.streams.audio[0]
    rate_hz = stream.rate or 0
    if stream.codec_context.name not in CODECS[form] or not 0 < rate_hz <= MAX_RATE_HZ:
        raise InvalidMediaError(f"{param} is not {form}.", param=param)
    stream.codec_context.thread_type = "NONE"
    resampler = AudioResampler(format="s16", layout="mono", rate=rate_hz)
    # BytesIO returns its bytes without a copy.
    wav = io.BytesIO()
    wav.write(wav_header(rate_hz, 1, None))
    pcm_bytes = 0
    for frame in container.decode(stream):
        for ready in resampler.resample(frame):
            piece = bytes(ready.planes[0])[: 2 * ready.samples]
            hold(len(piece))
            pcm_bytes += wav.write(piece)
        if pcm_bytes > 2 * rate_hz * max_seconds:
            raise TooLargeError(f"{param} is longer than {max_seconds} s, the limit for one file.", param=param)
    if not pcm_bytes:
        raise InvalidMediaError(f"{param} holds no audio.", param=param)
    wav.seek(0)
    wav.write(wav_header(rate_hz, 1, pcm_bytes))
    return wav.getvalue()
