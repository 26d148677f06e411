"""What an image, audio or a video costs the thinker, by its size: tokens of the prompt, and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transformers import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from omni_proto.video_header import FRAMES_PER_GRID
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import MediaCost
from omni_stage.models.shared.prompts import check_aspect, check_sound_length

BYTES_PER_PIXEL: Final = 48
"""Per pixel of the image as the model sees it. The features take 24 (two frames of three float32 channels), and
resizing and reordering need about as much again: 534 MiB for 12.8 million pixels, measured with transformers 5."""
SMALLEST_PIXELS: Final = 32 << 10
"""More pixels than any small image is enlarged to."""
BYTES_PER_SOUND_SAMPLE: Final = 72
"""Per sample of the longest audio, to which the feature extractor pads every clip: 317 MiB for 300 s, measured with
transformers 5."""

FRAME_TOKENS: Final = (128, 768)
"""Fewest and most tokens that a frame of a video is scaled to. From transformers' processors of both families,
independent of preprocessor_config.json's values for images; `VIDEO_MIN_PIXELS` and `VIDEO_MAX_PIXELS` of
qwen_omni_utils."""
VIDEO_TOKENS: Final = 128_000
"""Tokens of which the frames of a video may take 90 %: `VIDEO_TOTAL_PIXELS` of qwen_omni_utils, in tokens."""
BYTES_PER_FRAME_PIXEL: Final = 60
"""Per pixel of a video's frames while the processor makes the engine's input. transformers 5.19's takes 36, measured by
benchmarks/video_memory.py; the rest is for two copies of its result, three float32 channels each."""


@dataclass(frozen=True, slots=True)
class MediaCosts:
    """Costs of media in one checkpoint's processor."""

    min_pixels: int
    max_pixels: int
    max_samples: int
    """Length of the longest audio, at SOUND_RATE_HZ."""
    patch: int
    """Side, in pixels, of the square of an image that becomes one token."""
    samples_per_token: int
    """Most samples of audio that become one token."""

    @classmethod
    def load(cls, path: Path, *, max_samples: int, patch: int, samples_per_token: int) -> MediaCosts:
        """Read the image processor's bounds in `path`; the arguments are the other fields.

        Raises ConfigurationError.
        """
        try:
            size = Qwen2VLImageProcessor.from_pretrained(str(path), local_files_only=True).size
            return cls(int(size["shortest_edge"]), int(size["longest_edge"]), max_samples, patch, samples_per_token)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"no image processor can be read from model.path {path} ({type(error).__name__}); the checkpoint must "
                "hold its preprocessor_config.json",
                field="model.path",
            ) from error

    def image(self, width: int, height: int) -> MediaCost:
        """See TakesMedia."""
        check_aspect(width, height)
        rows, columns = smart_resize(
            height, width, factor=self.patch, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )
        # Sides are rounded to patches, so a larger image may come out smaller: the bytes are an upper bound.
        seen = min(self.max_pixels, max((width + self.patch) * (height + self.patch), SMALLEST_PIXELS))
        return MediaCost(rows * columns // self.patch**2, seen * BYTES_PER_PIXEL)

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """See TakesVideo."""
        check_aspect(width, height)
        least, most = (tokens * self.patch**2 for tokens in FRAME_TOKENS)
        share = int(VIDEO_TOKENS * self.patch**2 * 0.9) * FRAMES_PER_GRID // frames
        most = max(min(most, share), int(least * 1.05))
        rows, columns = smart_resize(height, width, factor=self.patch, min_pixels=least, max_pixels=most)
        return columns, rows

    def video(self, width: int, height: int, frames: int) -> MediaCost:
        """See TakesVideo."""
        grids = -(-frames // FRAMES_PER_GRID)
        pixels = width * height
        return MediaCost(grids * pixels // self.patch**2, (frames + 1) * pixels * BYTES_PER_FRAME_PIXEL)

    def sound(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        check_sound_length(samples, self.max_samples)
        return MediaCost(samples // self.samples_per_token, self.max_samples * BYTES_PER_SOUND_SAMPLE)
