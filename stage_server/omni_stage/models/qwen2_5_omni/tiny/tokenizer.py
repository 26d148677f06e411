"""Trains the tiny checkpoint's byte-level BPE tokenizer and makes its processor."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

from omni_stage.models.qwen2_5_omni.tiny.vocabulary import CHAT_TEMPLATE, CORPUS, END_OF_TEXT, PADDING, SPECIAL_TOKENS

_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Words with their leading blank, digits one by one, runs of punctuation and of blanks: what merges may not cross."""


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly vocab_size ids, the special tokens last. Deterministic.

    Where the corpus runs out of merges, the ids up to the special tokens are left to filler tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    first_special = vocab_size - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=first_special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    filler = [f"<|extra_{index}|>" for index in range(first_special - tokenizer.get_vocab_size())]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*filler, *SPECIAL_TOKENS)])
    return tokenizer


def make_processor(vocab_size: int) -> Any:
    """The Qwen2_5OmniProcessor of the tiny checkpoint: tokenizer, image, video and sound preprocessing.

    Images are scaled to at most 64 tokens and sounds cut at 30 seconds, so that prompts stay short.
    """
    return wrap_tokenizer(train_tokenizer(vocab_size))


def wrap_tokenizer(core: Tokenizer) -> Any:
    """A Qwen2_5OmniProcessor around a tokenizer that has the model's special tokens."""
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
