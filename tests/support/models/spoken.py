"""Sounds for a tiny Whisper, which hears noise as letters, and transformers as its judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

RATE_HZ = 16_000


def make_audio(seconds: float, seed: int) -> np.ndarray:
    """Returns float32 [samples] of noise whose loudness and colour change."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE_HZ)
    slow = np.sin(np.arange(count) * (2 * np.pi * (0.3 + 0.2 * seed) / RATE_HZ))
    tone = np.sin(np.arange(count) * (2 * np.pi * (200 + 150 * seed) / RATE_HZ))
    audio: np.ndarray = (rng.standard_normal(count) * 0.05 + 0.3 * tone) * (0.6 + 0.4 * slow)
    return audio.astype(np.float32)


class WhisperJudge:
    """A Whisper checkpoint in transformers, float32."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(path, dtype="float32").eval()
        self._features = WhisperFeatureExtractor.from_pretrained(path)
        self._tokenizer = AutoTokenizer.from_pretrained(path)

    def features(self, samples: np.ndarray) -> Any:
        """Returns the spectrogram of at most 30 s."""
        return self._features(samples, sampling_rate=RATE_HZ, return_tensors="pt").input_features

    def write(self, samples: np.ndarray, *, timed: bool, max_tokens: int, **options: Any) -> list[int]:
        """Returns the tokens that generate() writes for one window, after the prompt."""
        options = {"language": "en", "task": "transcribe", **options}
        made = self.model.generate(
            self.features(samples),
            return_timestamps=timed,
            max_new_tokens=max_tokens,
            do_sample=False,
            force_unique_generate_call=True,
            return_dict_in_generate=True,
            **options,
        )
        ids: list[int] = made["sequences"][0].tolist()
        begin = ids.index(self.model.generation_config.decoder_start_token_id)
        return ids[begin + (3 if timed else 4) :]

    def language(self, samples: np.ndarray) -> int:
        """Returns the id of the language that the model hears."""
        return int(self.model.detect_language(self.features(samples))[0])

    def text(self, token_ids: list[int]) -> str:
        """Returns the text of tokens, without timestamps and special ones."""
        end = self.model.generation_config.eos_token_id
        return str(self._tokenizer.decode([token_id for token_id in token_ids if token_id < end]))
