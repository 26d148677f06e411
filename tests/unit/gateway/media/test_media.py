"""Media of requests: what is read, what is refused."""

from __future__ import annotations

import base64
import binascii
import random
import socket
from urllib.parse import quote

import pytest

from omni_gateway.context import Budget, Share
from omni_gateway.errors import GatewayError, InvalidMediaError, TooLargeError, UnsupportedError
from omni_gateway.media import fetch
from omni_gateway.media.encode import encode_whole
from omni_gateway.media.fetch import check_url
from omni_gateway.media.read import IMAGE_TYPES, decode_base64, read_media
from omni_gateway.openai.chat_messages import AssistantMessage, AudioPart, AudioUrlPart, ImagePart, TextPart
from omni_gateway.openai.chat_prompt import build_chat
from omni_gateway.settings import MediaSettings

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 30
HOLD = Share(Budget(1 << 20)).add


BYTES = bytes(range(256)) * 3 + b"\xfb\xff\xfe?>"
PLAIN = base64.b64encode(BYTES).decode()
LINES = base64.encodebytes(BYTES).decode()
FORMS = {
    "bare": PLAIN,
    "lines": LINES,
    "lines of windows": LINES.replace("\n", "\r\n"),
    "spaces around": f"  {PLAIN}\n",
    "without padding": PLAIN.rstrip("="),
    "alphabet for urls": base64.urlsafe_b64encode(BYTES).decode().rstrip("="),
    "percent-encoded": quote(PLAIN, safe=""),
    "as qwen's documentation shows": f"data:;base64,{PLAIN}",
    "data uri": f"data:audio/wav;base64,{PLAIN}",
    "upper case": f"DATA:AUDIO/WAV;BASE64,{PLAIN}",
    "parameters": f"data:audio/webm;codecs=opus;base64,{PLAIN}",
    "a comma in parameters": f"data:video/webm;codecs=vp8,opus;base64,{LINES}",
    "a comma for the semicolon": f"data:audio/wav,base64,{PLAIN}",
    "in quotes": f'"{PLAIN}"',
    "a data uri in quotes": f"'data:audio/wav;base64,{PLAIN}'",
    "after a byte order mark": f"\ufeff{PLAIN}",
    "spaces between the characters": " ".join(PLAIN),
    "pluses that became spaces": PLAIN.replace("+", " "),
    "two beginnings": f"data:audio/wav;base64,data:audio/wav;base64,{PLAIN}",
    "no type and no semicolon": f"data:base64,{PLAIN}",
    "python's str() of bytes": f"b'{PLAIN}'",
    "python's str() of bytes behind its type": f"data:image/jpeg;base64,b'{PLAIN}'",
    "slashes escaped for json": PLAIN.replace("/", "\\/"),
    "a zero and other spaces around it": f"\u00a0\u200b{PLAIN}\0",
    "spaces in its head": f" data: audio/wav; charset=x; base64,{PLAIN}",
}


@pytest.mark.parametrize("form", FORMS)
def test_base64_is_read_as_clients_write_it(form: str) -> None:
    assert decode_base64(FORMS[form], param="x", max_bytes=1000) == BYTES


URL_HEADS = (
    *("data:image/png;base64,", "data:image/JPEG;base64,", "data:image/png;a=b;base64,", "data:image/*;base64,"),
    *("data:undefined;base64,", "data:null;base64,", "data:text/plain;charset=utf-8;base64,", "data:;base64,"),
    *("\n  data:image/png;base64,", "\ufeffDATA:application/octet-stream;BASE64,", '"data:image;base64,'),
)


@pytest.mark.parametrize("head", URL_HEADS)
async def test_the_bytes_decide_whatever_the_url_states(head: str) -> None:
    """A browser's undefined type, a template's line break: vLLM and Pillow read the bytes alone, too."""
    url = {"url": head + base64.b64encode(PNG).decode()}
    part = ImagePart.model_validate({"type": "image_url", "image_url": url})
    (media,) = await read_media([("messages[0].content[0]", part)], MediaSettings(), HOLD)
    assert (media.media_type, media.data) == ("image/png", PNG)


PEM = "-----BEGIN-----\nQUFB\n-----END-----"


@pytest.mark.parametrize(
    "text", ["***", "data:audio/wav,abc", "data:audio/wav;base64", "QQ=Q", "a", PEM, "%zz", "é", "{}"]
)
def test_invalid_base64_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidMediaError, match="base64") as caught:
        decode_base64(text, param="x", max_bytes=1000)
    assert caught.value.param == "x"


@pytest.mark.parametrize("text", ["A" * 4000, "A " * 700, "data:;base64," + "A" * 1400])
def test_oversized_base64_is_refused(text: str) -> None:
    with pytest.raises(TooLargeError):
        decode_base64(text, param="x", max_bytes=500)


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("data:image/png;base64,", 400),
        ("iVBORw0KGgo=", 400),
        (" ", 400),
        ("data:image/png,abc", 400),
        ("data:image/svg+xml;base64,AAAA", 400),
        ("data:text/html;base64,AAAA", 400),
        ("data:image/png;base64,***", 400),
        ("data:image/png;base64,é", 400),
        ("data:image/png;base64," + "A" * 4000, 413),
    ],
)
async def test_wrong_data_uris_are_refused(url: str, status: int) -> None:
    part = ImagePart.model_validate({"type": "image_url", "image_url": url})
    with pytest.raises(GatewayError) as caught:
        await read_media([("x", part)], MediaSettings(max_bytes=1024), HOLD)
    assert (caught.value.status, caught.value.param) == (status, "x.image_url")


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


TYPES = {"wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac"}


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
        ("aac", "audio/aac"),
        ("wav", "application/octet-stream"),
    ],
)
async def test_audio_is_passed_on_by_its_bytes(form: str, kind: str) -> None:
    """As with vLLM, the bytes decide and not the type. The stage gets them as they are."""
    data = encode_whole(form, bytes(2 * 24_000), 24_000, 1)
    (media,) = await read_media([("messages[0].content[0]", audio_url(data, kind))], MediaSettings(), HOLD)
    part = AudioPart.model_validate(
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}
    )
    assert await read_media([("messages[0].content[0]", part)], MediaSettings(), HOLD) == [media]
    assert (media.kind, media.data) == ("audio", data)
    assert media.media_type == TYPES[form]


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (audio_url(b"not audio", "audio/wav"), InvalidMediaError, "is not WAV, FLAC, MP3"),
        (audio_url(b"ID3", "audio/mpeg"), InvalidMediaError, "is not WAV, FLAC, MP3"),
        (audio_url(b"RIFF", "video/mp4"), InvalidMediaError, "is not WAV, FLAC, MP3"),
        (audio_url(PNG, "audio/wav"), InvalidMediaError, "it is image/png"),
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


@pytest.mark.parametrize("size", [1, 2, 3, 786_431, 786_432, 786_433, 1_600_000])
def test_base64_of_any_size_is_decoded_as_a_whole(size: int) -> None:
    """Long base64 is decoded in pieces. What binascii refuses as a whole is refused in pieces."""
    data = random.Random(size).randbytes(size)
    text = base64.b64encode(data).decode()
    assert decode_base64(text, param="x", max_bytes=1 << 22) == data
    cut = 1 << 20
    for wrong in (
        f"{text}AA==AAAA",
        f"{text[:cut]}={text[cut:]}A",
        f"AA=={text}",
        f"{text}A",
        f"{text[:cut]}AA=={text[cut:]}A",
    ):
        with pytest.raises(binascii.Error):
            binascii.a2b_base64(wrong, strict_mode=True)
        with pytest.raises(InvalidMediaError):
            decode_base64(wrong, param="x", max_bytes=1 << 22)
