"""Decoded videos are upright, as OpenCV shows them. vLLM reads videos with OpenCV."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from omni_proto.media_headers.video import read_video_header
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.models.component import VideoPart
from omni_stage.service.media.planning import judge_medium
from omni_stage.service.media.slots import MediaRules, MediaSlot
from omni_stage.service.media.worker_pool import MediaPool
from support.media.videos import encode_video, turn_track
from support.stages.scripted_stages import ScriptedComponent

RULES = MediaRules(Limits(), MediaLimits(), ScriptedComponent(), 4096)

IN_PIECES = {"movflags": "frag_keyframe+empty_moov+default_base_moof+frag_discont", "use_editlist": "0"}


@pytest.mark.parametrize(
    ("form", "picture", "options"),
    [
        ("webm", "libvpx", {}),
        ("matroska", "libx264", {}),
        ("mp4", "libx264", {}),
        ("mov", "libx264", {}),
        ("mp4", "libx264", IN_PIECES),
    ],
)
def test_a_piece_of_a_longer_video_is_as_long_as_it_is(form: str, picture: str, options: dict[str, str]) -> None:
    """Its times go on from those of the recording. How many frames the model gets depends on the length."""
    audio = "libopus" if form == "webm" else "aac"
    for begin_s in ("0", "7", "4000"):
        shifted = {**options, "output_ts_offset": begin_s}
        # Small: noise takes long to encode.
        video = encode_video(form, picture, audio, frames=50, width=96, height=72, options=shifted)
        header = read_video_header(video)
        assert header.seconds == pytest.approx(5.0, abs=0.3)
        assert header.kept_frames in (8, 10)


async def test_a_video_is_turned_as_its_file_says(tmp_path: Path) -> None:
    pool = MediaPool(1)
    try:
        for form in ("mp4", "mov"):
            for turns in range(4):
                data = turn_track(encode_video(form, audio=None, frames=4, fps=2), turns)
                slot = judge_medium(MediaSlot("f", "video", "", data, None, len(data)), RULES)
                (part,) = await pool.decode([slot], RULES, 200.0)
                assert isinstance(part, VideoPart)
                expected = show(tmp_path / f"{turns}.{form}", data)
                assert part.frames.shape == expected.shape
                # Both decoders round colours differently. A frame that is turned wrongly differs by 50.
                assert np.abs(part.frames.astype(int) - expected).mean() < 5, (form, turns)
    finally:
        pool.close()


def show(file: Path, data: bytes) -> np.ndarray:
    """Returns the frames, RGB, as OpenCV shows them."""
    file.write_bytes(data)
    capture = cv2.VideoCapture(str(file))
    frames = []
    while (read := capture.read())[0]:
        frames.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return np.stack(frames)
