"""What an image or a sound costs the thinker, by its size: tokens of the prompt, and memory of vLLM's processor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transformers import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from omni_stage.errors import ConfigurationError
from omni_stage.models.component import MediaCost
from omni_stage.models.shared.prompts import check_aspect, check_sound_length

BYTES_PER_PIXEL: Final = 48
"""Of the image as the model sees it. The features take 24 (two frames of three float32 channels), and resizing and
reordering hold the picture about as often again: 534 MiB for 12.8 million pixels, measured with transformers 5."""
SMALLEST_PIXELS: Final = 32 << 10
"""More than any small image is enlarged to."""
BYTES_PER_SOUND_SAMPLE: Final = 72
"""Of the longest sound, to which the feature extractor pads every one: 317 MiB for 300 s, measured with transformers 5.
"""


@dataclass(frozen=True, slots=True)
class MediaCosts:
    """Of one checkpoint's processor."""

    min_pixels: int
    max_pixels: int
    max_samples: int
    """The longest sound, at SOUND_RATE_HZ."""
    patch: int
    """Sides of the square of an image that becomes one token."""
    samples_per_token: int
    """Of a sound, at most."""

    @classmethod
    def load(cls, path: Path, *, max_samples: int, patch: int, samples_per_token: int) -> MediaCosts:
        """Read the image processor's bounds in `path`; the rest are the fields. Raises ConfigurationError."""
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
        # Sides are rounded to patches, by rules that a larger image may come out smaller by: bytes are for the most.
        seen = min(self.max_pixels, max((width + self.patch) * (height + self.patch), SMALLEST_PIXELS))
        return MediaCost(rows * columns // self.patch**2, seen * BYTES_PER_PIXEL)

    def sound(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        check_sound_length(samples, self.max_samples)
        return MediaCost(samples // self.samples_per_token, self.max_samples * BYTES_PER_SOUND_SAMPLE)
