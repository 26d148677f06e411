"""Measures the peak memory per pixel of decoding a video, and of transformers' video processor, which makes the input.

    python -m benchmarks.video_memory

The stage reserves upper bounds of these figures: WORK_BYTES_PER_PIXEL (omni_stage/decoding/video.py) for each pixel of
one encoded frame, and BYTES_PER_FRAME_PIXEL (omni_stage/models/shared/media_cost.py) for each pixel of all frames that
the model sees. Each case runs in its own process, so that the kernel records the peak of that case alone.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEIGHT, FRAMES = 1920, 1088, 40
SEEN = (20, 28 * 24, 28 * 36)
"""Frames, height and width of the processor's input. A frame is 24 by 36 squares of 28 pixels (2 x 2 patches)."""
CODECS: dict[str, tuple[str, dict[str, str], str]] = {
    "h264": ("libx264", {"preset": "ultrafast"}, "yuv420p"),
    "h264, 16 references": ("libx264", {"preset": "ultrafast", "refs": "16", "level": "6.2"}, "yuv420p"),
    "h264, 16 references, 10 bits": ("libx264", {"preset": "ultrafast", "refs": "16", "level": "6.2"}, "yuv420p10le"),
    "h264, 16 references, 4:4:4": ("libx264", {"preset": "ultrafast", "refs": "16", "level": "6.2"}, "yuv444p"),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=error"}, "yuv420p"),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, "yuv420p"),
    "av1": ("libsvtav1", {"preset": "12"}, "yuv420p"),
    "mpeg4": ("mpeg4", {}, "yuv420p"),
}


def encode(codec: str) -> bytes:
    """Returns a video of moving noise, in one of CODECS."""
    import av

    name, options, pixels = CODECS[codec]
    frame = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = container.add_stream(name, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixels
        for index in range(FRAMES):
            moved = av.VideoFrame.from_ndarray(np.roll(frame, 8 * index, axis=1), format="rgb24")
            container.mux(stream.encode(moved))
        container.mux(stream.encode())
    return buffer.getvalue()


def peak_of(work: Callable[[], object]) -> int:
    """Runs `work`. Returns by how many bytes this process's peak memory exceeded its memory before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def decode_case(file: Path) -> float:
    """Returns the decoder's peak memory divided by the pixels of one encoded frame.

    The frames that the decoder returns are tiny here, so that they hardly count.
    """
    from omni_stage.decoding.video import decode_video

    data = file.read_bytes()
    out = np.zeros((8, 64, 64, 3), np.uint8)
    return peak_of(lambda: decode_video(data, "video/mp4", seconds=FRAMES / 10, max_frames=FRAMES, out=out)) / (
        WIDTH * HEIGHT
    )


def process_case(patch: int) -> float:
    """Calls transformers' video processor as vLLM does. Returns its peak memory divided by the pixels of all frames."""
    import torch
    from transformers import Qwen2VLVideoProcessor

    frames, height, width = SEEN
    video = np.random.default_rng(0).integers(0, 255, (frames, height, width, 3)).astype(np.uint8)
    processor = Qwen2VLVideoProcessor(patch_size=patch, cap_pixels_per_frame=False)
    torch.set_num_threads(1)
    small = video[:4, : 8 * patch, : 8 * patch]
    processor(videos=[small], return_tensors="pt", fps=2.0, do_sample_frames=False)
    return peak_of(lambda: processor(videos=[video], return_tensors="pt", fps=2.0, do_sample_frames=False)) / (
        frames * height * width
    )


def main(arguments: list[str]) -> None:
    """Runs all cases, or the one that the arguments name."""
    if arguments[:1] == ["decode"]:
        print(decode_case(Path(arguments[1])))
        return
    if arguments[:1] == ["process"]:
        print(process_case(int(arguments[1])))
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            file = Path(folder) / "video.mp4"
            try:
                file.write_bytes(encode(codec))
            except ValueError as error:
                print(f"decode, {codec}: not encoded here ({type(error).__name__})")
                continue
            print(f"decode, {codec}: {_run('decode', str(file)):.1f} bytes a pixel", flush=True)
    for patch in (14, 16):
        print(f"process, patches of {patch}: {_run('process', str(patch)):.1f} bytes a pixel", flush=True)


def _run(*arguments: str) -> float:
    command = [sys.executable, "-m", "benchmarks.video_memory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout.split()[-1])


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")))


if __name__ == "__main__":
    main(sys.argv[1:])
