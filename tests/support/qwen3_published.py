"""The thinker's component of the published Qwen3-Omni, whose tokenizer is not known byte for byte."""

from __future__ import annotations

from pathlib import Path

from omni_stage.models.qwen3_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen3_omni.schemas import PACE
from omni_stage.models.qwen3_omni.thinker.component import (
    DEFAULT_SAMPLING,
    PATCH,
    SAMPLES_PER_TOKEN,
    Thinker,
    read_audio_limit,
)
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import PromptBuilder
from omni_stage.models.shared.thinker import ThinkerSettings


class MediaTokens:
    """What a prompt's builder asks of a tokenizer, which is not known byte for byte: that it has the media's tokens."""

    chat_template = ""
    eos_token_id = 151_645

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """Returns the published names."""
        return {151_675: "<|audio_pad|>", 151_655: "<|image_pad|>", 151_656: "<|video_pad|>"}[token_id]


def thinker_of(checkpoint: Path) -> Thinker:
    """Returns the thinker's component, without a tokenizer."""
    facts = read_checkpoint(checkpoint)
    settings = ThinkerSettings(
        feeds=True,
        max_media=4,
        default_sampling=DEFAULT_SAMPLING,
        end_token_ids=(facts.text.message_end,),
        media_costs=MediaCosts(4 << 10, 64 << 10, 4_800_000, PATCH, SAMPLES_PER_TOKEN),
        pace=PACE,
    )
    prompts = PromptBuilder(
        MediaTokens(), facts, max_audio_samples=read_audio_limit(checkpoint), speech_needs_chat=True
    )
    return Thinker(facts, prompts, settings)
