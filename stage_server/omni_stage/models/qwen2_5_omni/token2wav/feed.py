"""Token2wav's streamed input: collects codec tokens into windows as they arrive, and joins the windows' audio."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_stage.errors import ModelExecutionError
from omni_stage.models.component import EdgeRows, EngineInput, EngineStep, FinishReason, InputPart, StageStep
from omni_stage.models.qwen2_5_omni.checkpoint import Blocks, SoundShape
from omni_stage.models.qwen2_5_omni.token2wav.windows import Window, next_window


class SoundFeed:
    """An InputFeed of windows. Keeps all codes of the request, 8 bytes each."""

    def __init__(
        self,
        blocks: Blocks,
        check: Callable[[torch.Tensor], torch.Tensor | None],
        build: Callable[[torch.Tensor, Window], EngineInput],
    ) -> None:
        """`check` refuses codes without audio or too many codes; `build` makes a window's engine input."""
        self._blocks = blocks
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
        """Returns the next window; None if more codes must arrive.

        If there are no codes at all, the request ends as EMPTY_INPUT.
        """
        if self._ended and not len(self._codes):
            return InputPart(EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT), last=True)
        window = next_window(self._sounded, len(self._codes), ended=self._ended, blocks=self._blocks)
        if window is None:
            return None
        self._sounded = window.until
        return InputPart(self._build(self._codes[window.begin : window.end], window), last=window.last)


class WindowEmitter:
    """Joins the audio of a request's windows. Each window but the last has a tail: the samples after its own audio.

    The tail, one mel frame, is almost equal to the beginning of the next window's audio. The two are cross-faded.
    """

    def __init__(self, sound: SoundShape) -> None:
        self._sound = sound
        self._tail: torch.Tensor | None = None

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one window's audio. Raises ModelExecutionError if it is missing or has an invalid length."""
        audio = step.tensors.get("output")
        if audio is None:
            raise ModelExecutionError("the engine finished a window without audio")
        rest = 0 if "tail" in step.tensors else self._sound.rest
        whole = max(1, (audio.numel() - rest) // self._sound.code) * self._sound.code
        check_audio(audio, whole + rest)
        if self._tail is not None:
            audio = fade_over(self._tail, audio)
        tail = step.tensors.get("tail")
        if tail is not None:
            check_audio(tail, self._sound.frame)
        self._tail = tail
        return StageStep.of_audio(step, audio)


def check_audio(audio: torch.Tensor, samples: int) -> None:
    """Check that the audio is float32 [samples].

    Raises ModelExecutionError. NaN and infinity do not reach this function: the runner ends such a request
    (vllm_adapter/diffusion/output.py).
    """
    if audio.shape != (samples,) or audio.dtype != torch.float32:
        raise ModelExecutionError(
            f"the engine gave audio of {audio.dtype} and shape {tuple(audio.shape)}; it must be float32, ({samples},)"
        )


def fade_over(tail: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    """Returns a new float32 [n]: `audio` [n], with `tail` [m] fading out linearly over its first samples."""
    count = min(tail.shape[0], audio.shape[0])
    weight = (torch.arange(count, dtype=torch.float32) + 1) / (count + 1)
    joined = audio.clone()
    joined[:count] = tail[:count] * (1 - weight) + audio[:count] * weight
    return joined
