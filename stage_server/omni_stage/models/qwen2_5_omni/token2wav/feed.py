"""Token2wav's streamed input: arriving codec tokens to windows, and the audio of the windows to the whole audio."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_stage.errors import ModelExecutionError
from omni_stage.models.component import EngineStep, FinishReason, StageInput, StageStep
from omni_stage.models.edge_stream import EdgeRows, InputPart
from omni_stage.models.qwen2_5_omni.token2wav.windows import CODE_SAMPLES, FADE_SAMPLES, Window, next_window


class SoundFeed:
    """An InputFeed. Keeps all codes: 8 bytes each."""

    def __init__(
        self,
        block_codes: int,
        check: Callable[[torch.Tensor], torch.Tensor | None],
        build: Callable[[torch.Tensor, Window], StageInput],
    ) -> None:
        """`check` refuses codes without audio; `build` makes the engine's input from a window's codes."""
        self._block_codes = block_codes
        self._check = check
        self._build = build
        self._codes = torch.empty(0, dtype=torch.int64)
        self._sounded = 0
        self._ended = False

    def add(self, rows: EdgeRows) -> None:
        """Add codes. Raises InvalidTensorError."""
        if "codes" in rows.tensors:
            codes = torch.cat([self._codes, rows.tensors["codes"].reshape(-1)])
            self._check(codes)
            self._codes = codes
        self._ended = self._ended or rows.ended

    def next_part(self) -> InputPart | None:
        """Returns the next window. If there are no codes at all, the request ends as EMPTY_INPUT."""
        if self._ended and not len(self._codes):
            return InputPart(StageInput(prompt={}, finished=FinishReason.EMPTY_INPUT), last=True)
        window = next_window(self._sounded, len(self._codes), ended=self._ended, block_codes=self._block_codes)
        if window is None:
            return None
        self._sounded = window.until
        return InputPart(self._build(self._codes[window.begin : window.end], window), last=window.last)


class WindowEmitter:
    """Joins the audio of a request's windows. A window has a tail: the first samples of the next window's audio.

    Tail and beginning are the same audio up to small differences: the tail fades out over the next window's beginning.
    """

    def __init__(self) -> None:
        self._tail: torch.Tensor | None = None

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one window's audio. Raises ModelExecutionError if there is none, or no whole number of codes."""
        audio = step.tensors.get("output")
        if audio is None:
            raise ModelExecutionError("the engine finished a window without audio")
        check_audio(audio)
        if self._tail is not None:
            audio = fade_over(self._tail, audio)
        tail = step.tensors.get("tail")
        if tail is not None:
            check_audio(tail, FADE_SAMPLES)
        self._tail = tail
        return StageStep.of_audio(step, audio)


def check_audio(audio: torch.Tensor, samples: int | None = None) -> None:
    """Check that the audio is float32 [samples], or of whole codes if `samples` is None.

    Raises ModelExecutionError. NaN and infinity do not reach this: the runner ends such a request
    (vllm_adapter/diffusion/output.py).
    """
    expected = samples if samples is not None else max(1, audio.numel() // CODE_SAMPLES) * CODE_SAMPLES
    if audio.shape != (expected,) or audio.dtype != torch.float32:
        raise ModelExecutionError(
            f"the engine gave audio of {audio.dtype} and shape {tuple(audio.shape)}; it must be float32, ({expected},)"
        )


def fade_over(tail: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    """Returns float32 [n]: `audio`, with `tail` [m] faded linearly into its first samples. A new tensor."""
    count = min(tail.shape[0], audio.shape[0])
    weight = (torch.arange(count, dtype=torch.float32) + 1) / (count + 1)
    joined = audio.clone()
    joined[:count] = tail[:count] * (1 - weight) + audio[:count] * weight
    return joined
