"""Decodes a video to the frames and the audio that the model gets. FFmpeg decodes, through PyAV.

Frames are decoded one at a time, on one thread. About two frames a second are kept (see `sample_count`), spread evenly
as in qwen_omni_utils, and all others are dropped. A kept frame is scaled to the model's size immediately. At the
encoded size, memory holds only the frames that the decoder needs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

import av
import numpy as np
from av.video.frame import VideoFrame
from PIL import Image

from omni_proto.media_headers.container import MAX_TRACKS
from omni_proto.media_headers.video import sample_count
from omni_stage.decoding.audio import CODECS, MAX_DAMAGE, AudioRules, Damage, decode_track, read_frames, read_packets
from omni_stage.decoding.decode import UndecodableError

FORMATS: Final = {
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-matroska": "matroska",
}
"""FFmpeg's demuxer for each media type. Naming the demuxer keeps FFmpeg from guessing the format from the content."""
PICTURE_CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9", "mpeg4"})
WORK_BYTES_PER_PIXEL: Final = 96
"""Upper bound of the working bytes per pixel of the encoded size while a video is decoded: up to 17 reference frames,
the frame that is converted, and its RGB copies. benchmarks/video_memory.py measured 15 to 25 with encoders' default
settings, 46 for H.264 with 16 reference frames, and 73 if that video also has 10 bits per sample or 4:4:4 colour."""


def decode_video(
    data: bytes, media_type: str, *, seconds: float, max_frames: int, out: np.ndarray
) -> tuple[int, float]:
    """Decode frames as RGB into `out`, uint8 [frames, height, width, 3], scaled to the height and width of `out`.

    `seconds` is the duration in the header, and `max_frames` the largest number of encoded frames that a video may
    have. Returns the number of frames written to `out`, and the share of encoded frames that were skipped because they
    are damaged. Raises UndecodableError or PyAV's errors.
    """
    damage = Damage()
    with _open(data, media_type) as container:
        stream = _picture(container)
        total = 0
        for packet in read_packets(container, stream, damage):
            total += packet.size > 0
            if total > max_frames:
                raise UndecodableError(f"the video has more than {max_frames} frames (media.maxVideoFrames)")
    count = min(sample_count(total, seconds), len(out))
    if count < 2:
        raise UndecodableError("the video has fewer than two frames; send it as an image")
    wanted = spread(total, count)
    damage = Damage()
    with _open(data, media_type) as container:
        kept = 0
        for index, frame in enumerate(_frames(container, max_frames, damage)):
            while kept < count and wanted[kept] == index:
                _scale(frame, out[kept])
                kept += 1
            if kept == count:
                return kept, damage.share
    # Not every packet holds a frame: encoders also write packets for frames that they drop. Repeat the last kept frame.
    if not kept:
        raise UndecodableError("no frame of the video can be decoded")
    out[kept:count] = out[kept - 1]
    if damage.share > MAX_DAMAGE:
        raise UndecodableError(f"{damage.share:.0%} of the video's frames are damaged; send it again")
    return count, damage.share


def spread(total: int, count: int) -> list[int]:
    """Returns the indices of `count` of `total` frames, first and last included, ascending.

    Equals `torch.linspace(0, total - 1, count).round()` in qwen_omni_utils.
    """
    # As in torch: float32, and rint rounds halves to even.
    places: list[int] = np.rint(np.linspace(0, total - 1, count, dtype=np.float32)).astype(np.int64).tolist()
    return places


def decode_audio_track(data: bytes, media_type: str, rules: AudioRules, out: np.ndarray) -> tuple[int, float]:
    """Decode the first audio track as mono at `to_hz` into `out`, float32. Audio that does not fit in `out` is cut off.

    Returns the number of samples, 0 if the video has no audio, and the share of the track that was skipped because it
    is damaged. Raises UndecodableError or PyAV's errors.
    """
    with _open(data, media_type) as container:
        streams = container.streams.audio
        if not streams:
            return 0, 0.0
        stream = streams[0]
        _check_codec(stream, CODECS, "audio")
        damage = Damage()
        samples = decode_track(container, stream, rules, len(out), damage)
    out[: samples.size] = samples
    return samples.size, damage.share


def _open(data: bytes, media_type: str) -> Any:
    # Probe less than FFmpeg does by default, because the header was already read and names the tracks.
    options = {"probesize": str(1 << 20), "analyzeduration": "1000000", "max_streams": str(MAX_TRACKS)}
    options["codec_whitelist"] = ",".join(sorted(CODECS | PICTURE_CODECS))
    return av.open(io.BytesIO(data), format=FORMATS[media_type], options=options, metadata_errors="ignore")


def _picture(container: Any) -> Any:
    pictures = [stream for stream in container.streams.video if not _is_cover(stream)]
    if not pictures:
        raise UndecodableError("the file has no picture track")
    stream = pictures[0]
    _check_codec(stream, PICTURE_CODECS, "picture")
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    return stream


def _is_cover(stream: Any) -> bool:
    """Returns whether the stream is a cover picture attached to audio."""
    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def _check_codec(stream: Any, allowed: frozenset[str], what: str) -> None:
    context = stream.codec_context
    names = () if context is None else (context.name, context.codec.canonical_name)
    if allowed.isdisjoint(names):
        raise UndecodableError(f"the video's {what} is in an unsupported codec; send H.264 and AAC, or VP9 and Opus")


def _frames(container: Any, max_frames: int, damage: Damage) -> Iterator[VideoFrame]:
    for index, frame in enumerate(read_frames(container, _picture(container), damage)):
        if index >= max_frames:
            raise UndecodableError(f"the video has more than {max_frames} frames (media.maxVideoFrames)")
        yield frame


def _scale(frame: VideoFrame, out: np.ndarray) -> None:
    height, width, _ = out.shape
    # A stream may change its frame size. Memory is reserved and limited for the size in the header only.
    picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    out[:] = np.asarray(picture)
