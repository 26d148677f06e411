"""Computes what an image, an audio clip or a video of a given size costs the thinker: prompt tokens and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transformers import Qwen2VLImageProcessor, WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from omni_proto.media_headers.video import FRAMES_PER_GRID
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import MediaCost
from omni_stage.models.shared.config_file import read_if_there
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ, check_aspect, check_audio_length

BYTES_PER_PIXEL: Final = 48
"""Bytes per pixel of the image as the model sees it. The features take 24 (two frames of three float32 channels), and
resizing and reordering need about as much again: 534 MiB for 12.8 million pixels, measured with transformers 5."""
SMALLEST_PIXELS: Final = 32 << 10
"""Upper bound of the pixels to which a small image is enlarged."""
BYTES_PER_AUDIO_SAMPLE: Final = 72
"""Bytes per sample of audio, the feature extractor's padding included: 317 MiB for 300 s, measured with transformers
5."""

FRAME_TOKENS: Final = (128, 768)
"""Minimum and maximum number of tokens of one frame of a video. Frames are scaled to fit both. The values are the same
for both families, and independent of those for images in preprocessor_config.json. In qwen_omni_utils:
`VIDEO_MIN_PIXELS` and `VIDEO_MAX_PIXELS`."""
VIDEO_TOKENS: Final = 128_000
"""The frames of a video take at most 90 % of this many tokens, or more if every frame is already close to its minimum.
In qwen_omni_utils: `VIDEO_TOTAL_PIXELS`."""
BYTES_PER_FRAME_PIXEL: Final = 60
"""Bytes per pixel of a video's frames while the processor makes the engine's input. The processor of transformers 5.19
takes 36, measured by benchmarks/video_memory.py. The rest is for two copies of its result, each with three float32
channels."""


@dataclass(frozen=True, slots=True)
class MediaCosts:
    """Computes the costs of media for one checkpoint's processor."""

    min_pixels: int
    max_pixels: int
    max_samples: int
    """Length of the longest audio, at AUDIO_RATE_HZ."""
    patch: int
    """Side, in pixels, of the image square that becomes one token."""
    samples_per_token: int
    """Maximum number of samples of audio that become one token."""
    pads_to_limit: bool
    """Whether the feature extractor pads every clip to max_samples. Otherwise it pads to a request's longest clip."""

    @classmethod
    def load(cls, path: Path, *, max_samples: int, samples_per_token: int, pads_to_limit: bool) -> MediaCosts:
        """Read the image processor's numbers in `path`; the other arguments become the other fields.

        Raises ConfigurationError.
        """
        try:
            processor = Qwen2VLImageProcessor.from_pretrained(str(path), local_files_only=True)
            smallest, largest = int(processor.size["shortest_edge"]), int(processor.size["longest_edge"])
            patch, frames = int(processor.patch_size * processor.merge_size), int(processor.temporal_patch_size)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"no image processor can be read from model.path {path} ({type(error).__name__}); the checkpoint must "
                "hold its preprocessor_config.json",
                field="model.path",
            ) from error
        if frames != FRAMES_PER_GRID:
            raise ConfigurationError(
                f"{path}/preprocessor_config.json: temporal_patch_size is {frames}; only {FRAMES_PER_GRID} is served",
                field="model.path",
                limit=FRAMES_PER_GRID,
            )
        given = {"patch_size": processor.patch_size, "spatial_merge_size": processor.merge_size}
        _check_encoder(path, "vision_config", given)
        return cls(smallest, largest, max_samples, patch, samples_per_token, pads_to_limit)

    def image(self, width: int, height: int) -> MediaCost:
        """See TakesMedia."""
        check_aspect(width, height)
        rows, columns = smart_resize(
            height, width, factor=self.patch, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )
        # Sides are rounded to patches, so a larger image may be scaled to fewer pixels than a smaller one. But its cost
        # must not be lower, so the bytes are an upper bound.
        seen = min(self.max_pixels, max((width + self.patch) * (height + self.patch), SMALLEST_PIXELS))
        return MediaCost(rows * columns // self.patch**2, seen * BYTES_PER_PIXEL)

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """See TakesVideo."""
        check_aspect(width, height)
        minimum, maximum = (tokens * self.patch**2 for tokens in FRAME_TOKENS)
        share = int(VIDEO_TOKENS * self.patch**2 * 0.9) * FRAMES_PER_GRID // frames
        maximum = max(min(maximum, share), int(minimum * 1.05))
        rows, columns = smart_resize(height, width, factor=self.patch, min_pixels=minimum, max_pixels=maximum)
        return columns, rows

    def video(self, width: int, height: int, frames: int) -> MediaCost:
        """See TakesVideo."""
        grids = -(-frames // FRAMES_PER_GRID)
        pixels = width * height
        return MediaCost(grids * pixels // self.patch**2, (frames + 1) * pixels * BYTES_PER_FRAME_PIXEL)

    def audio(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        check_audio_length(samples, self.max_samples)
        padded = self.max_samples if self.pads_to_limit else samples
        return MediaCost(samples // self.samples_per_token, padded * BYTES_PER_AUDIO_SAMPLE)


def load_extractor(path: Path) -> WhisperFeatureExtractor:
    """Returns the audio feature extractor in `path`. Raises ConfigurationError if there is none, or if it does not fit
    the audio encoder or the rate to which audio is resampled."""
    try:
        extractor: WhisperFeatureExtractor = WhisperFeatureExtractor.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no feature extractor can be read from model.path {path} ({type(error).__name__}); the checkpoint must "
            "hold its preprocessor_config.json",
            field="model.path",
        ) from error
    if extractor.sampling_rate != AUDIO_RATE_HZ:
        raise ConfigurationError(
            f"{path}/preprocessor_config.json: sampling_rate is {extractor.sampling_rate}; only {AUDIO_RATE_HZ} is "
            "served",
            field="model.path",
            limit=AUDIO_RATE_HZ,
        )
    _check_encoder(path, "audio_config", {"num_mel_bins": extractor.feature_size})
    return extractor


def _check_encoder(path: Path, part: str, given: Mapping[str, int]) -> None:
    """Refuse an encoder whose config.json contradicts the processor's numbers `given`. Raises ConfigurationError."""
    encoder = (read_if_there(path / "config.json").get("thinker_config") or {}).get(part) or {}
    for name, number in given.items():
        if encoder.get(name, number) != number:
            raise ConfigurationError(
                f"{path}/config.json: {part}.{name} is {encoder[name]}, but preprocessor_config.json prepares media "
                f"for {number}; the two files must agree",
                field="model.path",
                limit=number,
            )
