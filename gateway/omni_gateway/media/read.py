"""Reads the media of chat messages: base64 and data: URIs in the request, or https URLs if media.fetchHttps is set."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Final

from omni_gateway.errors import InvalidMediaError, TooLargeError, UnsupportedError
from omni_gateway.media.fetch import fetch_media
from omni_gateway.openai.chat_messages import AudioPart, AudioUrlPart, ImagePart, Media, VideoPart, url_of
from omni_gateway.settings import MediaSettings
from omni_proto.client import ArgumentError, MediaPart, audio_part, image_part, video_part
from omni_proto.media_headers import describe_wrong

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
AUDIO_TYPES: Final = ("audio/*", "video/*", "application/ogg")
VIDEO_TYPES: Final = ("video/*",)
"""What a server is asked for. The type that a URL of data or an answer states is not read: only the bytes decide what a
file is, and programs write image/*, undefined, or the type of another file."""
_MAX_HEAD: Final = 1024
_MARK: Final = "base64,"
_URL_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
_SPACES: Final = b" \t\r\n\v\f"
_PERCENT: Final = {"%2B": b"+", "%2F": b"/", "%3D": b"=", "%2D": b"-", "%5F": b"_", "%0D": b"", "%0A": b"", "%20": b""}
"""What forms and URLs encode of base64."""
_WRAPPING: Final = "\ufeff\u200b\u00a0\"'` \t\r\n\0"
"""What editors, shells and templates leave around base64: a byte order mark, quotes, white space."""
_BYTES_REPR: Final = ("b'", 'b"')
"""The beginning of what Python's str() makes of base64 as bytes."""

_MARKS: Final = re.compile(rb"[+\-%]|\s\s|[\r\n\t]")
"""What shows that a space in base64 is white space and not a plus."""
_PIECE: Final = 1 << 20
"""Characters of base64 that are decoded at once, a multiple of four."""
Hold = Callable[[int], None]
"""Counts bytes that will be kept, see Share.add."""


def decode_base64(text: str, *, param: str, max_bytes: int) -> bytes:
    """Returns the decoded bytes of base64, or of a data: URI with it.

    Takes what base64 libraries, forms and editors make: line breaks, the alphabet for URLs, percent-encoding, text
    without padding, in quotes or after a byte order mark. Raises TooLargeError, before decoding, and InvalidMediaError.
    """
    text = _unwrap(text)
    for _ in range(2):  # some programs put the same beginning before a data: URI that has one
        if text[:64].lstrip()[:5].lower() == "data:":
            text = _unwrap(_base64_of(text, param))
    data = _decode(text, param, max_bytes)
    if not data:
        raise InvalidMediaError(f"{param} is empty.", param=param)
    return data


def _unwrap(text: str) -> str:
    """Returns a text without what programs leave around it."""
    text = text.strip(_WRAPPING)
    return text[2:] if text.startswith(_BYTES_REPR) else text


def _base64_of(uri: str, param: str) -> str:
    """Returns the base64 of a data: URI. Raises InvalidMediaError.

    Parameters of the type may hold commas: a browser's recorder writes data:video/webm;codecs=vp8,opus;base64,... A
    comma before base64 is taken for the semicolon that belongs there.
    """
    head = uri[:_MAX_HEAD].lower()
    end = head.find(_MARK)
    if end < 0 or head[end - 1 : end] not in (";", ",", " ", ":"):
        raise InvalidMediaError(f"{param} must be data:TYPE;base64,...", param=param)
    return uri[end + len(_MARK) :]


def _decode(text: str, param: str, max_bytes: int) -> bytes:
    too_large = TooLargeError(f"{param} holds more than {max_bytes} bytes, the limit for one file.", param=param)
    # Percent-encoding and line breaks add at most half.
    if len(text) > 2 * max_bytes + _MAX_HEAD:
        raise too_large
    try:
        data = _decode_pieces(text.encode("ascii"))
    except ValueError:
        try:
            data = _decode_pieces(_repair(text))
        except ValueError as error:
            raise InvalidMediaError(
                f"{param} is not base64: send the file's bytes in base64 (RFC 4648), alone or as a data: URI.",
                param=param,
            ) from error
    if len(data) > max_bytes:
        raise too_large
    return data


def _repair(text: str) -> bytes:
    """Returns strict base64 from the forms that `decode_base64` takes. In few passes, because all of them hold Python's
    global lock. Raises ValueError for other text than ASCII."""
    plain = text.encode("ascii")
    if plain.startswith(b"-----BEGIN"):
        raise ValueError("PEM")
    if b" " in plain and not _MARKS.search(plain):
        # Form decoding turns + into a space. Long base64 has the sign somewhere, unless all of them were turned.
        plain = plain.replace(b" ", b"+")
    plain = plain.replace(b"\\/", b"/")  # JSON that was escaped twice
    if b"%" in plain:
        for code, character in _PERCENT.items():
            plain = plain.replace(code.encode(), character).replace(code.lower().encode(), character)
    plain = plain.translate(_URL_ALPHABET, _SPACES).rstrip(b"=")
    return plain + b"=" * (-len(plain) % 4)


def _decode_pieces(text: bytes) -> bytes:
    """Returns the bytes of strict base64. Raises ValueError."""
    if b"=" in text[:-2]:
        raise ValueError("padding before the end")
    # In pieces, because each one holds Python's global lock, and other threads have to run.
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(binascii.a2b_base64(one, strict_mode=True) for one in pieces)


async def read_media(found: Sequence[tuple[str, Media]], settings: MediaSettings, hold: Hold) -> list[MediaPart]:
    """Returns the media in order. found: each part with the path of its field. hold counts bytes before they are
    kept.

    Raises GatewayError, whose param is the field.
    """
    if len(found) > settings.max_items:
        param = found[settings.max_items][0]
        raise TooLargeError(f"At most {settings.max_items} images, audio files and videos are allowed.", param=param)
    media = []
    for path, part in found:
        if isinstance(part, ImagePart):
            media.append(await _image(part, path, settings, hold))
        elif isinstance(part, VideoPart):
            media.append(await _video(part, path, settings, hold))
        elif isinstance(part, AudioUrlPart):
            media.append(await _audio_url(part, path, settings, hold))
        else:
            media.append(await _audio(part, path, settings, hold))
    return media


async def _image(part: ImagePart, path: str, settings: MediaSettings, hold: Hold) -> MediaPart:
    data, param = await _read_url(part, path, IMAGE_TYPES, settings, hold)
    try:
        return image_part(data)
    except ArgumentError as error:
        raise InvalidMediaError(f"{param} {describe_wrong(data, 'image')}.", param=param) from error


async def _video(part: VideoPart, path: str, settings: MediaSettings, hold: Hold) -> MediaPart:
    data, param = await _read_url(part, path, VIDEO_TYPES, settings, hold)
    try:
        return video_part(data)
    except ArgumentError as error:
        raise InvalidMediaError(f"{param} {describe_wrong(data, 'video')}.", param=param) from error


async def _read_url(
    part: ImagePart | VideoPart | AudioUrlPart, path: str, types: Sequence[str], settings: MediaSettings, hold: Hold
) -> tuple[bytes, str]:
    """Returns the file and the path of its URL. path: of the part."""
    below, url = url_of(part)
    param, url = path + below, _unwrap(url)
    if url[:5].lower() == "data:":
        hold(len(url) * 3 // 4)
        data = await asyncio.to_thread(decode_base64, url, param=param, max_bytes=settings.max_bytes)
        return data, param
    if url[:8].lower() != "https://":
        raise InvalidMediaError(f"{param} must be a data: URI or an https URL.", param=param)
    if not settings.fetch_https:
        raise UnsupportedError(
            "This gateway fetches no media: send a data: URI, or switch media.fetchHttps on.", param=param
        )
    return (
        await fetch_media(
            url, types, param=param, max_bytes=settings.max_bytes, max_seconds=settings.fetch_seconds, hold=hold
        ),
        param,
    )


async def _audio(part: AudioPart, path: str, settings: MediaSettings, hold: Hold) -> MediaPart:
    param = f"{path}.input_audio.data"
    hold(len(part.input_audio.data) * 3 // 4)
    data = await asyncio.to_thread(decode_base64, part.input_audio.data, param=param, max_bytes=settings.max_bytes)
    return _as_audio(data, param)


async def _audio_url(part: AudioUrlPart, path: str, settings: MediaSettings, hold: Hold) -> MediaPart:
    data, param = await _read_url(part, path, AUDIO_TYPES, settings, hold)
    return _as_audio(data, param)


def _as_audio(data: bytes, param: str) -> MediaPart:
    """Returns audio for the stage. The bytes decide its format, because clients often state a wrong one."""
    try:
        return audio_part(data)
    except ArgumentError as error:
        raise InvalidMediaError(f"{param} {describe_wrong(data, 'audio')}.", param=param) from error
