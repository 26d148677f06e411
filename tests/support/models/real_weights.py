"""The real weights that `make demo` and `make demo TALK=1` fetch, if they are in the cache, and Whisper as a judge."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_cli.weights.wheels import cache_folder

WHISPER_HZ = 16_000
_WINDOW_S = 30


def find_weights(name: str) -> Path:
    """Returns the folder of weights in the cache. Skips the test, by name, if they were not fetched."""
    folders = sorted(cache_folder().glob(f"{name}-*"))
    if not folders:
        pytest.skip(f"the weights {name} are not in {cache_folder()}; make demo TALK=1 fetches all")
    return folders[-1]


def transcribe(folder: Path, audio: np.ndarray, rate_hz: int) -> str:
    """Returns what Whisper hears in float samples, at most 30 seconds."""
    import torch

    assert audio.size <= _WINDOW_S * rate_hz
    model, extract, tokenizer = _load_whisper(folder)
    samples = int(audio.size * WHISPER_HZ / rate_hz)
    heard = np.fft.irfft(np.fft.rfft(audio)[: samples // 2 + 1], samples) * samples / audio.size
    features = extract(heard.astype(np.float32), sampling_rate=WHISPER_HZ, return_tensors="pt").input_features
    with torch.no_grad():
        ids = model.generate(input_features=features, language="en", task="transcribe", do_sample=False)
    return str(tokenizer.decode(ids[0], skip_special_tokens=True))


@cache
def _load_whisper(folder: Path) -> tuple[Any, Any, Any]:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return model, WhisperFeatureExtractor.from_pretrained(folder), WhisperTokenizerFast.from_pretrained(folder)


def split_words(text: str) -> list[str]:
    """Returns a text's words as a listener writes them: lower case, without marks."""
    return re.sub(r"[^a-z0-9' ]", "", text.lower().replace("-", " ")).split()


def count_word_errors(said: list[str], heard: list[str]) -> int:
    """Returns the fewest insertions, deletions and replacements of words between the two."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(said, 1):
        above, row = row, [number]
        for column, other in enumerate(heard, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (word != other)))
    return row[-1]
