"""The real weights that `make demo` and `make demo TALK=1` fetch, if they are in the cache, and Whisper as a judge."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_cli.weights.wheels import cache_folder

WHISPER_HZ = 16_000
_WINDOW_S = 30
SENTENCES = (
    "The old bridge was closed for three days.",
    "My sister teaches music at a small school.",
    "We planted tomatoes and beans behind the house.",
    "Please bring me a cup of hot tea.",
    "The bus to the airport leaves at noon.",
    "He forgot his umbrella on the train.",
    "They painted the kitchen in a light yellow.",
    "A cold wind came down from the mountains.",
    "The library opens again on Monday morning.",
    "She wrote a long letter to her grandmother.",
    "The children built a castle of wet sand.",
    "I would like a table near the window.",
    "The farmer sold apples, honey and fresh eggs.",
    "Nobody heard the phone ring last night.",
    "This road follows the river to the sea.",
    "Our neighbor repaired the broken fence himself.",
    "The museum shows paintings from many countries.",
    "Snow covered the roofs of the whole town.",
    "He speaks four languages and is learning another.",
    "The soup needs a little more salt.",
    "We waited an hour for the next boat.",
    "Her brother works in a bakery downtown.",
    "The lights went out during the storm.",
    "There were twenty seven people in the room.",
    "A small dog slept under the wooden bench.",
    "The doctor asked him to rest for a week.",
    "You can buy tickets at the front door.",
    "The moon was bright above the quiet lake.",
    "They moved to the city in the spring.",
    "I lost my keys somewhere in the garden.",
    "The teacher explained the lesson once more.",
    "Fresh bread smells better than anything else.",
    "The river rises after every heavy rain.",
    "She found an old map in the attic.",
    "Our train was late because of the fog.",
    "He carried two heavy bags up the stairs.",
    "The shop on the corner sells used books.",
    "Many birds fly south before the winter.",
    "We watched the sunset from the top of the hill.",
    "The engineer tested the new machine twice.",
    "Breakfast is served until ten in the morning.",
    "The cat climbed on the roof and fell asleep.",
    "A good question is half of the answer.",
    "The village has one church and two schools.",
    "Please close the door behind you.",
    "The mechanic changed the oil and the front tires.",
    "Her favorite color has always been green.",
    "The concert begins when the sun goes down.",
    "They drank coffee and talked about the weather.",
    "The answer was written on the last page.",
)
PARAGRAPHS = tuple(" ".join(SENTENCES[begin : begin + 7]) for begin in range(0, len(SENTENCES), 7))
"""All sentences, in pieces that are spoken in less than 30 seconds."""


def find_weights(name: str) -> Path:
    """Returns the folder of weights in the cache. Skips the test, by name, if they were not fetched."""
    folders = sorted(cache_folder().glob(f"{name}-*"))
    if not folders:
        pytest.skip(f"the weights {name} are not in {cache_folder()}; make demo TALK=1 fetches all")
    return folders[-1]


def transcribe(folder: Path, audio: np.ndarray, rate_hz: int) -> str:
    """Returns what Whisper hears in float samples, at most 30 seconds."""
    return transcribe_all(folder, [(audio, rate_hz)])[0]


def transcribe_all(folder: Path, spoken: Sequence[tuple[np.ndarray, int]]) -> list[str]:
    """Returns what Whisper hears in each (samples, rate), as `transcribe` does, in half the time of one by one."""
    import torch

    model, extract, tokenizer = _load_whisper(folder)
    heard = []
    for audio, rate_hz in spoken:
        assert audio.size <= _WINDOW_S * rate_hz
        samples = int(audio.size * WHISPER_HZ / rate_hz)
        resampled = np.fft.irfft(np.fft.rfft(audio)[: samples // 2 + 1], samples) * samples / audio.size
        heard.append(resampled.astype(np.float32))
    features = extract(heard, sampling_rate=WHISPER_HZ, return_tensors="pt").input_features
    with torch.no_grad():
        ids = model.generate(input_features=features, language="en", task="transcribe", do_sample=False)
    return [str(text) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


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


def read_wav(data: bytes) -> tuple[np.ndarray, int]:
    """Returns the samples of a WAV file of 16 bits, from -1 to 1, and their rate."""
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768, file.getframerate()


def count_misheard(spoken: Sequence[tuple[np.ndarray, int]]) -> float:
    """Returns the share of words that Whisper base hears wrongly in PARAGRAPHS, given as (samples, rate) in order."""
    errors = words = 0
    for text, heard in zip(PARAGRAPHS, transcribe_all(find_weights("whisper-base"), spoken), strict=True):
        said = split_words(text)
        errors += count_word_errors(said, split_words(heard))
        words += len(said)
    return errors / words
