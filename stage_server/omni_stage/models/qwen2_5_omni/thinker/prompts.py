"""The parts of prompts that are specific to Qwen2.5-Omni: the system message for speech, and the longest audio."""

from __future__ import annotations

from pathlib import Path

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ

SPEECH_SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The exact system message that the model needs in order to speak well.

Source: the model card of Qwen/Qwen2.5-Omni-7B, "Prompt for audio output". Qwen2_5OmniProcessor.apply_chat_template
of transformers 4.52.4 warns if the message differs.
"""


def read_audio_limit(path: Path) -> int:
    """Returns the maximum number of samples, at 16 kHz, that the feature extractor reads from an audio clip.

    It cuts off the rest. The limit is `chunk_length` of preprocessor_config.json: 300 seconds in the published
    checkpoints. Raises ConfigurationError.
    """
    from transformers import WhisperFeatureExtractor

    try:
        extractor = WhisperFeatureExtractor.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no feature extractor can be read from model.path {path} ({type(error).__name__}); the checkpoint must "
            "hold its preprocessor_config.json",
            field="model.path",
        ) from error
    return int(extractor.chunk_length) * AUDIO_RATE_HZ
