"""Measures how much audio decoded in windows differs from audio decoded from all codec tokens in one forward.

Runs the model and joins the windows without an engine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the models that the tests compare with transformers

from benchmarks.first_audio.playback import count_clicks
from benchmarks.harness.report import Row
from omni_stage.models.qwen2_5_omni.token2wav.component import fade_over
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import Speech
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance, cut_window
from omni_stage.models.qwen2_5_omni.token2wav.windows import next_window

BLOCKS, SEEDS, STEPS = 15, 3, 10


@dataclass(frozen=True, slots=True)
class Windowed:
    """The audio of one utterance, made window by window."""

    audio: torch.Tensor
    """float32 [samples]."""
    borders: list[int]
    """For each window but the first, the index of its first sample."""
    first_codes: int
    """Codec tokens that the first window reads."""


def speak_in_windows(speech: Speech, whole: Utterance) -> Windowed:
    """Returns the audio window by window, as token2wav makes it for a Stream edge."""
    parts: list[torch.Tensor] = []
    borders: list[int] = []
    tail: torch.Tensor | None = None
    first, first_codes = 0, 0
    while (window := next_window(first, len(whole.codes), ended=True, blocks=speech.blocks)) is not None:
        keep = (window.skip, window.keep, 0 if window.last else speech.audio_shape.frame)
        part = replace(whole, codes=whole.codes[window.begin : window.end], first_code=window.begin, keep=keep)
        (audio,) = speech.speak([part])
        made: Any = cut_window(audio, part, speech.audio_shape)
        parts.append(made["output"] if tail is None else fade_over(tail, made["output"]))
        if first:
            borders.append(first * speech.audio_shape.code)
        first_codes = first_codes or window.end
        tail, first = made.get("tail"), window.until
    return Windowed(torch.cat(parts), borders, first_codes)


def measure_windows(models: Mapping[str, Any], voices: Mapping[str, Any]) -> list[Row]:
    """Returns a row for each of `models`, which are transformers' token2wav models. All use the first of `voices`."""
    return [_measure_shape(name, model, dict(voices)) for name, model in models.items()]


def _measure_shape(name: str, model: Any, voices: dict[str, Any]) -> Row:
    speech = Speech(model, voices, use_graphs=False)
    dit, block_codes = model.code2wav_dit_model, speech.blocks.codes
    errors: list[float] = []
    others: list[float] = []
    clicks, first_codes = 0, 0
    with torch.inference_mode():
        for seed in range(SEEDS):
            codes = torch.randint(100, (BLOCKS * block_codes,), generator=torch.Generator().manual_seed(seed))
            whole = Utterance(codes, next(iter(voices)), seed, STEPS, 0.5)
            (full,) = speech.speak([whole])
            (other,) = speech.speak([replace(whole, seed=seed + 100)])
            windowed = speak_in_windows(speech, whole)
            errors.append(_rms(windowed.audio - full))
            others.append(_rms(other - full))
            clicks += count_clicks(windowed.audio.numpy().astype(np.float32), windowed.borders)
            first_codes = windowed.first_codes
    error, difference = float(np.mean(errors)), float(np.mean(others))
    return {
        "shape": name,
        "layers": len(dit.transformer_blocks),
        "block_frames": dit.block_size,
        "first_audio_after_codes": first_codes,
        "error_db_of_another_seed": round(20 * math.log10(error / difference), 1),
        "clicks": clicks,
    }


def _rms(audio: torch.Tensor) -> float:
    return float(audio.pow(2).mean().sqrt())
