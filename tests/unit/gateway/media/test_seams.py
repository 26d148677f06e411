"""Parts of speech are joined without a click, and nothing else of them is changed."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.first_audio.playback import count_clicks

from omni_gateway.api.speaking import FADE_S, Seams

RATE = 24_000
FADE = round(RATE * FADE_S)


def tone(samples: int, start: float, channels: int = 1) -> bytes:
    wave = (np.sin(start + np.arange(samples) * 0.05) * 20_000).astype("<i2")
    return np.repeat(wave, channels).tobytes()


def join(parts: list[bytes], step: int, *, pause_s: float = 0.1, channels: int = 1) -> bytes:
    seams, joined = Seams(RATE, channels), b""
    for index, part in enumerate(parts):
        if index:
            joined += seams.pause(pause_s)
        for begin in range(0, len(part), step):
            joined += seams.add(part[begin : begin + step])
    return joined + seams.finish()


@pytest.mark.parametrize("step", [2, 300, 960, 1 << 20])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_seam_does_not_click(step: int, pause_s: float) -> None:
    # Each part ends, and the next one begins, far from zero.
    parts = [tone(6000, 1.5), tone(6000, 1.2), tone(6000, 1.7)]
    joined = np.frombuffer(join(parts, step, pause_s=pause_s), "<i2").astype(np.float32)
    silence = round(RATE * pause_s)
    assert len(joined) == 3 * 6000 + 2 * silence
    borders = [6000, 6000 + silence, 12_000 + silence, 12_000 + 2 * silence]
    assert count_clicks(joined, borders) == 0
    plain = np.frombuffer(b"".join(parts), "<i2").astype(np.float32)
    assert count_clicks(plain, [6000, 12_000]) == 2, "without the fade each border clicks"


@pytest.mark.parametrize("channels", [1, 2])
def test_only_the_borders_change(channels: int) -> None:
    parts = [tone(2000, 1.0, channels), tone(2000, 1.0, channels)]
    joined = join(parts, 500 * channels, channels=channels)
    fade, size = FADE * 2 * channels, len(parts[0])
    assert joined[: size - fade] == parts[0][:-fade]
    assert joined[-(size - fade) :] == parts[1][fade:]


@pytest.mark.parametrize("samples", [0, 1, FADE - 1, FADE, FADE + 1])
def test_one_part_is_not_changed(samples: int) -> None:
    assert join([tone(samples, 1.0)], 2) == tone(samples, 1.0)


@pytest.mark.parametrize("samples", [0, 1, FADE // 2, FADE, 2 * FADE])
def test_a_part_shorter_than_a_fade_keeps_its_length(samples: int) -> None:
    parts = [tone(1000, 1.0), tone(samples, 1.0), tone(1000, 1.0)]
    assert len(join(parts, 100)) == 2 * (2000 + samples + 2 * round(RATE * 0.1))
