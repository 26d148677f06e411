"""Makes the tiny checkpoint's processor."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

from omni_stage.models.qwen2_5_omni.tiny.vocabulary import CHAT_TEMPLATE, SPECIAL_TOKENS
from omni_stage.models.shared.tiny.chat_template import END_OF_TEXT, PADDING
from omni_stage.models.shared.tiny.tokenizer import train_tokenizer


def make_processor(vocab_size: int) -> Any:
    """Returns the Qwen2_5OmniProcessor of the tiny checkpoint: tokenizer, image, video and audio preprocessing.

    Images are scaled to at most 64 tokens and audio is cut off after 30 seconds, so that prompts stay short.
    """
    return wrap_tokenizer(train_tokenizer(vocab_size, SPECIAL_TOKENS))


def wrap_tokenizer(core: Tokenizer) -> Any:
    """Returns a Qwen2_5OmniProcessor around a tokenizer that has the model's special tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={
            "image_token": "<|IMAGE|>",
            "audio_token": "<|AUDIO|>",
            "video_token": "<|VIDEO|>",
            "vision_bos_token": "<|vision_bos|>",
            "vision_eos_token": "<|vision_eos|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
        },
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    pixels = {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28}
    return Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(pixels)),
        video_processor=Qwen2VLVideoProcessor(size=dict(pixels)),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128,
            sampling_rate=16000,
            n_fft=400,
            hop_length=160,
            chunk_length=30,
            return_attention_mask=True,
        ),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
