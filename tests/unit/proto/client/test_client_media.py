"""Media in a request: types are found by content, large media are sent in chunks, and wrong media are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_proto.client import ArgumentError, audio_part, image_part, user
from omni_proto.client.messages import MAX_INLINE_BYTES
from omni_proto.media_headers import sniff
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from support.peers.client_requests import FLAC, JPEG, PNG, WAV, prepare, sent


def test_large_media_follow_in_chunks() -> None:
    large = PNG + bytes(MAX_INLINE_BYTES) + b"end"
    start, *chunks, end = sent(chat=[user(image_part(large), image_part(JPEG))])
    first, second = start.start.chat.messages[0].parts
    assert first.image.chunked.total_bytes == len(large)
    assert second.image.data == JPEG
    assert {c.media.media_id for c in chunks} == {first.image.chunked.media_id}
    assert [c.media.offset for c in chunks] == [i * 1024 * 1024 for i in range(len(chunks))]
    assert b"".join(c.media.data for c in chunks) == large
    assert end.WhichOneof("message") == "end"


def test_media_of_one_start_fit_one_message_together() -> None:
    images = [image_part(PNG + bytes(3 * 1024 * 1024)) for _ in range(4)]
    messages = sent(chat=[user(*images)])
    assert all(m.ByteSize() < MAX_MESSAGE_BYTES for m in messages)
    parts = messages[0].start.chat.messages[0].parts
    assert [p.image.WhichOneof("source") for p in parts] == ["data", "chunked", "chunked", "chunked"]
    assert [p.image.chunked.media_id for p in parts[1:]] == [1, 2, 3]


def test_messages_can_be_made_again_for_a_retry() -> None:
    prepared = prepare(chat=user(image_part(PNG + bytes(MAX_INLINE_BYTES))))
    assert list(prepared.messages()) == list(prepared.messages())


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (WAV, "audio/wav"),
        (FLAC, "audio/flac"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"", None),
    ],
)
def test_media_types_are_found_by_content(data: bytes, media_type: str | None) -> None:
    kind = "audio" if media_type and media_type.startswith("audio/") else "image"
    assert sniff(data, kind) == media_type


def test_media_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "sound.bin"
    path.write_bytes(FLAC)
    assert audio_part(path) == audio_part(str(path)) == audio_part(FLAC)
    with pytest.raises(FileNotFoundError):
        image_part(tmp_path / "missing.png")


def test_media_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ArgumentError, match="PNG, JPEG, WebP or GIF"):
        image_part(WAV)
    with pytest.raises(ArgumentError, match="WAV, FLAC, MP3"):
        audio_part(b"ID3")
