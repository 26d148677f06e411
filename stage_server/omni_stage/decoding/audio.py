"""Decodes audio to mono samples at the model's rate. FFmpeg decodes, through PyAV, with named demuxers and decoders.

Like players, it continues after damage: what cannot be decoded is skipped and counted. Files that were joined end to
end are decoded one after the other, because FFmpeg reads some of them only up to the first end, or with wrong settings.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import av
import numpy as np
from av.error import FFmpegError

from omni_proto.media_headers.audio import split_joined
from omni_proto.media_headers.container import MAX_TRACKS
from omni_proto.media_headers.mpeg_frames import count_frames
from omni_stage.decoding.decode import UndecodableError
from omni_stage.decoding.resample import resample_blocks

DEMUXERS: Final = {
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/aac": "aac",
    "audio/ogg": "ogg",
    "audio/mp4": "mp4",
    "audio/webm": "webm",
    "audio/x-matroska": "matroska",
    "audio/aiff": "aiff",
    "audio/basic": "au",
    "audio/x-caf": "caf",
    "audio/amr": "amr",
    "audio/x-nist": "nistsphere",
    "audio/x-voc": "voc",
    "audio/x-w64": "w64",
}
"""FFmpeg's demuxer for each media type. Naming the demuxer keeps FFmpeg from guessing the format from the content."""
CODECS: Final = frozenset(
    {
        *("aac", "mp3", "mp3float", "opus", "libopus", "vorbis", "flac", "alac", "speex"),
        *(
            "pcm_u8",
            "pcm_s16le",
            "pcm_s24le",
            "pcm_s32le",
            "pcm_f16le",
            "pcm_f32le",
            "pcm_f64le",
            "pcm_alaw",
            "pcm_mulaw",
        ),
        *("pcm_f16le", "pcm_s8", "pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be"),
        *("mp1", "mp1float", "mp2", "mp2float", "adpcm_ms", "adpcm_ima_wav", "gsm_ms", "g722", "g726"),
        *("adpcm_ima_qt", "amrnb", "amrwb", "gsm"),
    }
)
"""FFmpeg's names of the decoders that may run."""
_PCM_FORMAT: Final = re.compile(rb"(fmt [\x10-\x28]\0\0\0(?:[\x01\x03]\0|\xfe\xff(?=.{22}[\x01\x03]\0)))", re.DOTALL)
"""The beginning of a WAV's format if its samples are numbers."""
_LONG_DATA: Final = re.compile(rb"data(?=\xff{4})")
MIN_RATE_HZ: Final = 4000
MAX_DAMAGE: Final = 0.75
"""The largest share of a file that may be damaged. What is damaged further is refused."""
_MAX_READ_ERRORS: Final = 64
_SCALES: Final = {"u8": 1 << 7, "s16": 1 << 15, "s32": 1 << 31, "s64": 1 << 63, "flt": 1, "dbl": 1}
"""The value of full amplitude, by FFmpeg's name of the sample format."""
_BLOCK: Final = 1 << 16
_EXACT: Final = ("audio/wav", "audio/flac", "audio/ogg", "audio/aiff", "audio/basic")
_EXACT_S, _ROUGH_S = 0.03, 0.15
"""Differences between the stated and the decoded length that damage does not explain: the last frame of
the exact formats; what encoders add at the beginning and the end in other formats."""


@dataclass(frozen=True, slots=True)
class AudioRules:
    """What decoded audio may be."""

    to_hz: int
    stated_s: float
    """The length that the file states; 0 if it states none."""
    max_rate_hz: int
    max_channels: int


@dataclass(slots=True)
class Damage:
    """Counts what was skipped of one file."""

    packets: int = 0
    lost: int = 0

    @property
    def share(self) -> float:
        """The share of packets that were skipped, 0 to 1."""
        return min(1.0, self.lost / max(1, self.packets))


def decode_audio(data: bytes, media_type: str, rules: AudioRules, out: np.ndarray) -> tuple[int, float]:
    """Decode audio into `out`, float32 [samples], as the average of its channels at `to_hz`.

    Returns the number of samples, and the share of the file that is damaged and was skipped, 0 to MAX_DAMAGE. Raises
    UndecodableError or PyAV's errors.
    """
    damage = Damage()
    position = 0
    # One sample more than fits shows that the audio is longer.
    most = len(out) + 1
    parts = split_joined(media_type, memoryview(data))
    for part in parts:
        file = data if len(part) == len(data) else bytes(part)
        file = _fill_words(_as_riff(file)) if media_type == "audio/wav" else file
        try:
            samples = _decode_file(file, media_type, rules, most - position, damage)
        except FFmpegError:
            damage.packets += 1
            damage.lost += 1
            if len(parts) == 1:
                raise
            continue
        if position + samples.size > len(out):
            reason = "that its header states" if rules.stated_s else "that one file may have (media.maxAudioSeconds)"
            raise UndecodableError(f"the audio is longer than the {len(out) / rules.to_hz:g} s {reason}")
        out[position : position + samples.size] = samples
        position += samples.size
    if not position:
        raise UndecodableError("the audio is empty" if not damage.lost else "no part of the audio can be decoded")
    share = max(damage.share, _strange(media_type, data))
    missing = _missing(media_type, position / rules.to_hz, rules.stated_s)
    # If everything that is there can be decoded, the stated length may be wrong.
    share = max(share, min(missing, MAX_DAMAGE) if not damage.lost else missing)
    if share > MAX_DAMAGE:
        raise UndecodableError(f"{share:.0%} of the audio is damaged or missing; send it again")
    return position, share


def _missing(media_type: str, seconds: float, stated_s: float) -> float:
    """Returns the share of the stated length that was not decoded."""
    tolerance = _EXACT_S if media_type in _EXACT else _ROUGH_S
    missing = stated_s - seconds
    return missing / stated_s if missing > tolerance else 0.0


def _strange(media_type: str, data: bytes) -> float:
    """Returns the share of MP3 and ADTS that is neither a frame nor a tag; 0 for less than a thousandth."""
    if media_type not in ("audio/mpeg", "audio/aac"):
        return 0.0
    frames, strange = count_frames(media_type, memoryview(data))
    share = strange / max(1, frames + strange)
    return share if share >= 0.001 else 0.0


def _as_riff(wav: bytes) -> bytes:
    """Returns an RF64 or BW64 as a WAV, which is never too large here. FFmpeg hears nothing of one that does not state
    its length, as programs write it that stream."""
    if wav[:4] not in (b"RF64", b"BW64"):
        return wav
    found = _LONG_DATA.search(wav)
    if found is None:
        return b"RIFF" + wav[4:]
    at = wav.find(b"ds64", 0, found.start())
    stated = int.from_bytes(wav[at + 16 : at + 24], "little") if at >= 0 else 0
    there = len(wav) - found.end() - 4
    length = min(stated or there, there)
    return b"RIFF" + wav[4 : found.end()] + struct.pack("<I", length) + wav[found.end() + 4 :]


def _fill_words(wav: bytes) -> bytes:
    """Returns a WAV whose samples use all bits of their words, as far as its header says.

    The bits that samples do not use are zero, and follow those that they use. FFmpeg takes 24 bits in 32 for Cool
    Edit's numbers with a fraction, and 16 in 32 for 16.
    """
    found = _PCM_FORMAT.search(wav)
    if found is None:
        return wav
    at = found.end(1)
    channels, align, bits = struct.unpack_from("<H8xHH", wav, at)
    bits = 32 if 16 < bits <= 24 and align == 4 * channels else bits
    full = struct.pack("<H", bits)
    extension = b"\x16\0" + full if found[1].endswith(b"\xfe\xff") else b""
    end = at + 14 + len(extension)
    return wav if wav[at + 12 : end] == full + extension else wav[: at + 12] + full + extension + wav[end:]


def _decode_file(data: bytes, media_type: str, rules: AudioRules, most: int, damage: Damage) -> np.ndarray:
    """Returns at most `most` samples of a file. Raises UndecodableError or PyAV's errors."""
    options = {
        "probesize": str(1 << 20),
        "max_streams": str(MAX_TRACKS),
        "codec_whitelist": ",".join(sorted(CODECS)),
    }
    with av.open(io.BytesIO(data), format=DEMUXERS[media_type], options=options, metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise UndecodableError("the file has no audio track")
        stream = container.streams.audio[0]
        if stream.codec_context is None or stream.codec_context.name not in CODECS:
            raise UndecodableError("the audio is in an unsupported codec; send MP3, AAC, Opus, FLAC or WAV")
        return decode_track(container, stream, rules, most, damage)


def decode_track(container: Any, stream: Any, rules: AudioRules, most: int, damage: Damage) -> np.ndarray:
    """Returns at most `most` samples of an audio track, float32 [samples] at rules.to_hz."""
    stream.codec_context.thread_type = "NONE"
    if stream.codec_context.name == "flac":
        # Without this, a frame with a wrong checksum would be decoded to noise.
        stream.codec_context.options = {"err_detect": "crccheck+explode"}
    blocks = _blocks(read_frames(container, stream, damage), rules, most, damage)
    # A track may change its rate, for example where recordings were joined.
    pieces = [
        resample_blocks((block for _, block in group), rate, rules.to_hz)
        for rate, group in groupby(blocks, lambda item: item[0])
    ]
    samples: np.ndarray = np.concatenate(pieces or [np.empty(0, np.float32)])
    return samples[:most]


def read_frames(container: Any, stream: Any, damage: Damage) -> Iterator[Any]:
    """Yields the decoded frames of a track. Packets that cannot be decoded are skipped and counted."""
    for packet in read_packets(container, stream, damage):
        damage.packets += packet.size > 0
        try:
            ready = packet.decode()
        except FFmpegError:
            damage.lost += 1
            continue
        yield from ready


def read_packets(container: Any, stream: Any, damage: Damage) -> Iterator[Any]:
    """Yields the packets of a track. Reading continues after an error, a limited number of times."""
    for _ in range(_MAX_READ_ERRORS):
        try:
            yield from container.demux(stream)
        except FFmpegError:
            damage.lost += 1
        else:
            return


def _blocks(frames: Iterable[Any], rules: AudioRules, most: int, damage: Damage) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the mono samples of frames with their rate, in blocks of about _BLOCK, until `most` output samples are
    certain."""
    seconds, left = 0.0, most / rules.to_hz
    held: list[np.ndarray] = []
    rate = size = 0
    for frame in frames:
        if not MIN_RATE_HZ <= frame.sample_rate <= rules.max_rate_hz:
            raise UndecodableError(
                f"the audio has {frame.sample_rate} samples a second, {MIN_RATE_HZ} to {rules.max_rate_hz} are accepted"
            )
        if held and (frame.sample_rate != rate or size >= _BLOCK):
            yield rate, np.concatenate(held)
            held, size = [], 0
        rate = frame.sample_rate
        samples = _mono(frame, rules.max_channels)
        if samples is None:
            damage.lost += 1
            continue
        held.append(samples)
        size += samples.size
        seconds += samples.size / rate
        if seconds > left:
            break
    if held:
        yield rate, np.concatenate(held)


def _mono(frame: Any, max_channels: int) -> np.ndarray | None:
    """Returns the average of a frame's channels, float32 [samples], -1 to 1; None if it holds NaN or infinity."""
    channels = frame.layout.nb_channels
    if not 1 <= channels <= max_channels:
        raise UndecodableError(f"the audio has {channels} channels, at most {max_channels} (media.maxAudioChannels)")
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, channels).T
    if not np.isfinite(samples).all():
        return None
    full = _SCALES[frame.format.name.removesuffix("p")]
    if frame.format.name.startswith("u8"):
        samples = samples.astype(np.float32) - full
    with np.errstate(over="ignore"):  # an overflow to infinity is clipped like any value beyond 1
        mono: np.ndarray = samples.astype(np.float32).mean(axis=0, dtype=np.float32) / np.float32(full)
    np.clip(mono, -1.0, 1.0, out=mono)
    return mono
