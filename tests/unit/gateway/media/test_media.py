"""Media of requests: what is read, what is refused."""

from __future__ import annotations

import base64
import socket

import pytest

from omni_gateway.errors import GatewayError, InvalidMediaError, UnsupportedError
from omni_gateway.guard.budget import Budget, Share
from omni_gateway.media import fetch
from omni_gateway.media.addresses import check_url
from omni_gateway.media.data_uri import IMAGE_TYPES, read_data_uri
from omni_gateway.media.encode import encode_whole
from omni_gateway.media.read import read_media
from omni_gateway.openai.chat_messages import AssistantMessage, AudioUrlPart, TextPart
from omni_gateway.openai.chat_prompt import build_chat
from omni_gateway.settings import MediaSettings

PIXEL = b"\x89PNG\r\n\x1a\n" + b"\0" * 30
HOLD = Share(Budget(1 << 20)).add


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:image/JPEG;base64,", "data:image/png;a=b;base64,"])
def test_data_uris_are_read(head: str) -> None:
    assert read_data_uri(head + base64.b64encode(PIXEL).decode(), IMAGE_TYPES, param="x", max_bytes=1000) == PIXEL


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("data:image/png;base64,", 400),
        ("data:image/png,abc", 400),
        ("data:image/svg+xml;base64,AAAA", 400),
        ("data:text/html;base64,AAAA", 400),
        ("data:image/png;base64,***", 400),
        ("data:image/png;base64,é", 400),
        ("data:image/png;base64," + "A" * 4000, 413),
    ],
)
def test_wrong_data_uris_are_refused(url: str, status: int) -> None:
    with pytest.raises(GatewayError) as caught:
        read_data_uri(url, IMAGE_TYPES, param="x", max_bytes=1000)
    assert (caught.value.status, caught.value.param) == (status, "x")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.png",
        "https://",
        "https://user@example.com/a.png",
        "https://example.com:8443/a.png",
        "https://example.com:x/",
        "https://[::1",
        "file:///etc/passwd",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidMediaError):
        check_url(url, param="x")


async def test_a_name_with_one_internal_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A hostile name server's answer, in place of the system resolver's.
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("93.184.215.14", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: answers)
    with pytest.raises(InvalidMediaError, match="public"):
        await fetch.resolve("rebind.example", param="x")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0x7f000001", "2130706433", "127.1", "[::1]"])
async def test_this_host_is_never_fetched(host: str) -> None:
    with pytest.raises(InvalidMediaError):
        await fetch.fetch_media(
            f"https://{host}/a.png", IMAGE_TYPES, param="x", max_bytes=1000, max_seconds=5, hold=HOLD
        )


def audio_url(data: bytes, kind: str) -> AudioUrlPart:
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return AudioUrlPart.model_validate({"type": "audio_url", "audio_url": {"url": url}})


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("wav", "audio/wav"),
        ("flac", "audio/x-flac"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("mp3", "audio/wav"),
    ],
)
async def test_audio_urls_are_read_in_every_format_of_input_audio(form: str, kind: str) -> None:
    """As with vLLM, the bytes decide and not the media type. The stage gets WAV or FLAC."""
    part = audio_url(encode_whole(form, bytes(2 * 24_000), 24_000, 1), kind)
    (media,) = await read_media([("messages[0].content[0]", part)], MediaSettings(), HOLD)
    assert media.kind == "audio"
    assert media.data.startswith(b"fLaC" if form == "flac" else b"RIFF")


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (audio_url(b"not audio", "audio/wav"), InvalidMediaError, "is not WAV, FLAC, MP3 or Opus"),
        (audio_url(encode_whole("aac", bytes(48_000), 24_000, 1), "audio/mpeg"), InvalidMediaError, "is not WAV, FLAC"),
        (audio_url(b"ID3", "audio/mpeg"), InvalidMediaError, "cannot be decoded as mp3"),
        (audio_url(b"RIFF", "text/html"), InvalidMediaError, "must be of the type audio/wav"),
        (
            AudioUrlPart.model_validate({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}),
            UnsupportedError,
            "switch media.fetchHttps on",
        ),
    ],
)
async def test_wrong_audio_urls_are_refused(part: AudioUrlPart, error: type[GatewayError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        await read_media([("messages[0].content[0]", part)], MediaSettings(), HOLD)
    assert caught.value.param == "messages[0].content[0].audio_url.url"


def test_an_earlier_answer_may_have_a_part_that_refuses() -> None:
    """OpenAI's API allows text and refusal parts in the content of an assistant message."""
    content = [TextPart(type="text", text="Well. "), {"type": "refusal", "refusal": "I cannot."}]
    message = AssistantMessage.model_validate({"role": "assistant", "content": content})
    (chat,) = build_chat([message], [])
    assert chat.parts == ("Well. ", "I cannot.")
