"""Decoded media are kept for the next turn: by their bytes, what the decoder was told, and the cache salt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.errors import InvalidMediaError
from omni_stage.models.component import AudioPart, ImagePart, VideoPart
from omni_stage.service.media.decoded import DecodedMedia, content_key, decoded_bytes
from omni_stage.service.media.planning import judge_medium
from omni_stage.service.media.slots import MediaKind, MediaRules, MediaSlot
from omni_stage.service.media.worker_pool import MediaPool
from support.media.samples import encode_wav
from support.media.videos import encode_video
from support.stages.scripted_stages import ScriptedComponent

RULES = MediaRules(Limits(), MediaLimits(), ScriptedComponent(), 4096)
PATIENCE_S = 200.0
TONE, OTHER = (encode_wav(np.sin(np.arange(1600) / step).astype(np.float32)) for step in (3, 5))


def slot_of(data: bytes, kind: MediaKind = "audio", field: str = "f") -> MediaSlot:
    return judge_medium(MediaSlot(field, kind, "", data, None, len(data)), RULES)


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[MediaPool]:
    pool = MediaPool(1, kept_bytes=1 << 20)
    yield pool
    pool.close()


async def test_a_turn_decodes_only_what_is_new(pool: MediaPool) -> None:
    (first,) = await pool.decode([slot_of(TONE)], RULES, PATIENCE_S, "salt")
    again, new = await pool.decode([slot_of(TONE), slot_of(OTHER)], RULES, PATIENCE_S, "salt")
    assert again is first
    (salted,) = await pool.decode([slot_of(TONE)], RULES, PATIENCE_S, "another")
    assert salted is not first
    assert isinstance(first, AudioPart)
    assert isinstance(new, AudioPart)
    assert isinstance(salted, AudioPart)
    np.testing.assert_array_equal(salted.samples, first.samples)
    assert len({first.key, new.key, salted.key, ""}) == 4
    assert not np.array_equal(new.samples, first.samples)


async def test_what_is_kept_and_what_is_new_keep_their_order(pool: MediaPool) -> None:
    """Also an error names the field of its own medium. What could not be decoded is not kept."""
    tone, other = [(await pool.decode([slot_of(one)], RULES, PATIENCE_S))[0] for one in (TONE, OTHER)]
    third = encode_wav(np.zeros(800, np.float32))
    found = await pool.decode([slot_of(third), slot_of(OTHER), slot_of(TONE)], RULES, PATIENCE_S)
    assert found[1:] == [other, tone]
    broken = replace(slot_of(TONE, field="broken"), data=TONE[:44] + b"\0", media_type="audio/flac", size=45)
    for _ in range(2):
        with pytest.raises(InvalidMediaError) as caught:
            await pool.decode([slot_of(TONE), broken], RULES, PATIENCE_S)
        assert caught.value.details.field == "broken"


async def test_videos_are_kept_with_their_audio(pool: MediaPool) -> None:
    heard = replace(RULES, hear_videos=True)
    data = encode_video(width=32, height=32)
    slot = judge_medium(MediaSlot("f", "video", "", data, None, len(data)), heard)
    (first,) = await pool.decode([slot], heard, PATIENCE_S)
    (again,) = await pool.decode([slot], heard, PATIENCE_S)
    assert again is first
    assert isinstance(first, VideoPart)
    assert first.audio is not None
    assert first.audio.key == first.key != ""
    deaf = judge_medium(MediaSlot("f", "video", "", data, None, len(data)), RULES)
    (silent,) = await pool.decode([deaf], RULES, PATIENCE_S)
    assert isinstance(silent, VideoPart)
    assert silent.audio is None


def test_the_key_covers_every_instruction_to_the_decoder() -> None:
    slot = slot_of(TONE)
    rate = replace(RULES, media=RULES.media.model_copy(update={"max_audio_rate_hz": 48_000}))
    keys = {
        content_key(slot, RULES, ""),
        content_key(slot, RULES, "a"),
        content_key(slot, rate, ""),
        content_key(slot_of(OTHER), RULES, ""),
    }
    assert len(keys) == 4
    assert content_key(slot_of(TONE, field="g"), RULES, "") == content_key(slot, RULES, "")


def test_the_least_recently_used_leave_first() -> None:
    kept = DecodedMedia(100)
    parts = {name: AudioPart(np.zeros(10, np.float32), 16_000) for name in (b"a", b"b", b"c")}
    assert decoded_bytes(parts[b"a"]) == 40
    kept.put(b"a", parts[b"a"])
    kept.put(b"b", parts[b"b"])
    assert kept.get(b"a") is parts[b"a"]
    kept.put(b"c", parts[b"c"])
    assert kept.get(b"b") is None
    assert kept.get(b"a") is parts[b"a"]
    kept.put(b"large", ImagePart(Image.new("RGB", (6, 6))))
    assert kept.get(b"large") is None
    assert kept.get(b"c") is parts[b"c"]
