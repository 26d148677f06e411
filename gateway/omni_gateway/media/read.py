"""Reads the media of a chat's messages from the request, or fetches them over https if `media.fetchHttps` is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from omni_gateway.errors import InvalidMediaError, TooLargeError, UnsupportedError
from omni_gateway.media.data_uri import AUDIO_TYPES, IMAGE_TYPES, VIDEO_TYPES, decode_base64, read_data_uri
from omni_gateway.media.fetch import fetch_media
from omni_gateway.openai.chat_messages import AudioPart, AudioUrlPart, ImagePart, Media, VideoPart, url_of
from omni_gateway.settings import MediaSettings
from omni_proto.client import ArgumentError, MediaPart, audio_part, image_part, video_part
from omni_proto.media.media_header import FORMATS

Hold = Callable[[int], None]
"""Counts bytes that will be kept, see Share.add."""


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
        raise InvalidMediaError(f"{param} is not {FORMATS['image']}.", param=param) from error


async def _video(part: VideoPart, path: str, settings: MediaSettings, hold: Hold) -> MediaPart:
    data, param = await _read_url(part, path, VIDEO_TYPES, settings, hold)
    try:
        return video_part(data)
    except ArgumentError as error:
        raise InvalidMediaError(f"{param} is not {FORMATS['video']}.", param=param) from error


async def _read_url(
    part: ImagePart | VideoPart | AudioUrlPart, path: str, types: Sequence[str], settings: MediaSettings, hold: Hold
) -> tuple[bytes, str]:
    """Returns the file and the path of its URL. path: of the part."""
    below, url = url_of(part)
    param = path + below
    if url[:5].lower() == "data:":
        hold(len(url) * 3 // 4)
        data = await asyncio.to_thread(read_data_uri, url, types, param=param, max_bytes=settings.max_bytes)
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
        raise InvalidMediaError(f"{param} is not {FORMATS['audio']}.", param=param) from error
