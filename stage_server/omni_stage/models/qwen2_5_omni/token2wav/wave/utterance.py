"""A request's parameters, read from its payload, and which samples of its audio are returned. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch

from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.qwen2_5_omni.checkpoint import AudioShape
from omni_stage.payloads import AdditionalInformationPayload

_LEAST_GUIDANCE = 1e-5
"""Below this value transformers runs without guidance."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One request, read from its payload."""

    codes: torch.Tensor
    """int64 [N] on the CPU."""
    voice: str
    seed: int
    steps: int
    """Number of time points of the solver."""
    guidance: float
    first_code: int = 0
    """Index of codes[0] in the complete utterance; selects the part of the noise that belongs to these codes."""
    keep: tuple[int, int, int] | None = None
    """Number of codes to skip, number of codes whose audio is returned, samples to return as a tail. None: all
    audio."""

    @property
    def is_guided(self) -> bool:
        """Whether the transformer also computes every frame without voice and codes."""
        return self.guidance >= _LEAST_GUIDANCE

    @property
    def batch_key(self) -> tuple[int, bool]:
        """Utterances with equal keys share a solver loop. Lengths, voices, seeds and guidance strengths may differ."""
        return (self.steps, self.is_guided)


def read_utterance(request: AdditionalInformationPayload, voices: Container[str]) -> Utterance:
    """Returns the request's utterance. Raises InvalidRequestError."""
    voice = str(request.list("voice")[0])
    if voice not in voices:
        raise InvalidRequestError("voice: this checkpoint has no such voice", field="start.audio.voice")
    return Utterance(
        codes=request.tensor("codes"),
        voice=voice,
        seed=_number(request, "seed", int),
        steps=_number(request, "steps", int),
        guidance=_number(request, "guidance", float),
        first_code=_number(request, "first_code", int) if "first_code" in request else 0,
        keep=_keep(request) if "keep" in request else None,
    )


def cut_window(audio: torch.Tensor, utterance: Utterance, shape: AudioShape) -> torch.Tensor | dict[str, torch.Tensor]:
    """Returns all of an utterance's audio, float32 [samples]. For a window, returns its own audio and its tail by name:
    "output" and, unless the window is the last, "tail".

    Raises ModelExecutionError if the audio does not have the samples that the vocoder's shape gives.
    """
    expected = (shape.count(utterance.codes.shape[0]),)
    if audio.shape != expected:
        raise ModelExecutionError(
            f"the vocoder gave audio of shape {tuple(audio.shape)} for {utterance.codes.shape[0]} codes; "
            f"it must be {expected}"
        )
    if utterance.keep is None:
        return audio
    skip, keep, tail = utterance.keep
    begin, until = skip * shape.code, (skip + keep) * shape.code if tail else audio.shape[0]
    # Clone, because a slice would keep the memory of all of the audio.
    parts = {"output": audio[begin:until].clone()}
    if tail:
        parts["tail"] = audio[until : until + tail].clone()
    return parts


def _number(request: AdditionalInformationPayload, name: str, kind: Callable[[Any], Any]) -> Any:
    values = request.list(name)
    if len(values) != 1 or isinstance(values[0], str) or values[0] is None:
        raise InvalidRequestError(f"{name}: must be one number", field=name)
    return kind(values[0])


def _keep(request: AdditionalInformationPayload) -> tuple[int, int, int]:
    values = request.list("keep")
    if len(values) != 3 or not all(isinstance(value, int) and value >= 0 for value in values):
        raise InvalidRequestError("keep: must be three integers of at least 0", field="keep")
    skip, keep, tail = values
    return int(skip or 0), int(keep or 0), int(tail or 0)
