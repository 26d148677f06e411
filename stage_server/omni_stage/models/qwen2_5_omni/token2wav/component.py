"""Component qwen2_5_omni/token2wav: turns codec tokens into audio, with a diffusion model and a vocoder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.component import (
    EdgeInput,
    EdgeRows,
    EdgeStream,
    Emitter,
    EngineInput,
    EngineStep,
    FinishReason,
    InputPart,
    StageRequest,
    StageStep,
)
from omni_stage.models.component.request import pick_voice
from omni_stage.models.qwen2_5_omni.checkpoint import AudioShape, Blocks, OmniCheckpoint, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.manifest import DEFAULT_STEPS, TOKEN2WAV
from omni_stage.models.qwen2_5_omni.model_configs import pick_token2wav
from omni_stage.models.qwen2_5_omni.processors import talker2token2wav
from omni_stage.models.qwen2_5_omni.schemas import talker2token2wav_schema
from omni_stage.models.qwen2_5_omni.token2wav.windows import Window, next_window
from omni_stage.models.shared.vocoder import vocoder_input, vocoder_kwargs

STEP_WORK = 4096
"""Maximum work in one engine step, in codec tokens at the default number of solver steps: 82 s of speech. A request
with more work gets a step of its own. docs/gpu-sizing.md states the memory that this needs."""
CPU_STEP_WORK = 104
"""The same on a CPU: enough for the longest window of a streamed request (6 blocks of 12 codes) and a first one, or for
two of the longest windows with blocks of 4 codes."""
MAX_BATCH = 32
"""Maximum number of requests in one engine step."""
_DEFAULT_INTERVALS = DEFAULT_STEPS - 1
"""Intervals between the solver's time points."""


class Token2Wav:
    """The token2wav of one checkpoint; see the module's docstring."""

    facts = TOKEN2WAV
    output_schema = None
    default_sampling = TOKEN2WAV.default_sampling

    def __init__(self, checkpoint: OmniCheckpoint, voices: Sequence[str], max_work: int | None = None) -> None:
        """`voices`: names, the default first. `max_work`: maximum work per request; by default, enough for the longest
        utterance."""
        self._checkpoint = checkpoint
        self._max_work = min(max_work or checkpoint.max_codes, checkpoint.max_codes)
        self.voices = tuple(voices)
        self.input_schema = talker2token2wav_schema()

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class. For its unit of work, see count_work.

        transformers too runs this model in float32 whatever the checkpoint's dtype.
        """
        work = {"max_work": self._checkpoint.max_codes, "step_work": STEP_WORK, "cpu_step_work": CPU_STEP_WORK}
        return {
            **vocoder_kwargs(self._checkpoint.path, max_batch=MAX_BATCH, **work),
            "hf_overrides": pick_token2wav,
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert the talker's codec tokens. A request without codec tokens ends as EMPTY_INPUT."""
        if not isinstance(request.source, EdgeInput):
            raise InvalidRequestError(f"component {TOKEN2WAV.id} reads tensors of a talker, not a prompt")
        settings = self._settings(request)
        codes = self._check_codes(request.source.tensors)
        if codes is None:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        return self._engine_input({"codes": codes, **settings})

    def open_feed(self, request: StageRequest) -> WindowFeed:
        """Returns a feed of windows of codes (windows.py).

        The first audio of a long utterance is ready before its last code arrives. The audio differs slightly from the
        result of `prepare`.
        """
        settings = self._settings(request)

        def build(codes: torch.Tensor, window: Window) -> EngineInput:
            tail = 0 if window.last else self._checkpoint.audio.frame
            place = {"first_code": [window.begin], "keep": [window.skip, window.keep, tail]}
            return self._engine_input({"codes": codes, **settings, **place})

        return WindowFeed(self._checkpoint.blocks, lambda codes: self._check_codes({"codes": codes}), build)

    def _settings(self, request: StageRequest) -> dict[str, Any]:
        """Returns voice, seed, solver steps and guidance. Raises InvalidRequestError for an unknown voice."""
        sampling = request.sampling
        defaults = self.default_sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        steps = sampling.num_inference_steps or defaults.num_inference_steps
        guidance = defaults.guidance_scale if sampling.guidance_scale is None else sampling.guidance_scale
        voice = pick_voice(request.voice, self.voices)
        return {"voice": [voice], "seed": [seed], "steps": [steps], "guidance": [guidance]}

    def _check_codes(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return talker2token2wav(tensors, self._checkpoint.code_limit, self._checkpoint.max_codes)

    def _engine_input(self, values: dict[str, Any]) -> EngineInput:
        """Build the engine's input. Raises InvalidRequestError if its work exceeds the limit of a request."""
        (steps,) = values["steps"]
        work = count_work(len(values["codes"]), steps)
        if work > self._max_work:
            raise InvalidRequestError(
                f"sampling.num_inference_steps: {steps} steps over {len(values['codes'])} codec tokens are as much "
                f"work as {work} tokens at the default number of steps, but at most {self._max_work} fit one request; "
                "take fewer steps, or lower max_tokens upstream",
                field="sampling.num_inference_steps",
                limit=self._max_work,
            )
        return vocoder_input(work, values)

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that forwards the audio; for streamed input, one that joins the audio of windows."""
        if isinstance(request.source, EdgeStream):
            return WindowEmitter(self._checkpoint.audio)
        payload = prepared.additional_information
        codes = len(payload.tensor("codes")) if payload is not None else 0
        return Token2WavEmitter(self._checkpoint.audio.count(codes))

    def warmup_request(self) -> StageRequest:
        """Returns a request for short audio, with two time points of the solver."""
        return StageRequest(
            request_id="warmup",
            source=EdgeInput({"codes": torch.zeros(4, dtype=torch.int64)}),
            sampling=SamplingDefaults(seed=0, num_inference_steps=2),
        )


def count_work(codes: int, steps: int) -> int:
    """Returns the work of a request in codec tokens at the default number of solver steps, at least 1.

    `steps` is the number of time points. Between ten time points there are nine intervals, and each interval takes four
    evaluations of the transformer over all frames.
    """
    return max(1, -(-codes * (steps - 1) // _DEFAULT_INTERVALS))


class Token2WavEmitter:
    """Forwards the audio of one utterance."""

    def __init__(self, samples: int) -> None:
        """`samples`: number of samples of the audio."""
        self._samples = samples

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step.

        Raises ModelExecutionError if the last step has no audio, or if the audio has a wrong dtype or length.
        """
        audio = step.tensors.get("output")
        if audio is None and step.finish_reason is FinishReason.DIFFUSION_DONE:
            raise ModelExecutionError("the engine finished without audio")
        if audio is not None:
            check_audio(audio, self._samples)
        return StageStep.of_audio(step, audio)


def build_component(config: StageConfig) -> Token2Wav:
    """Build the token2wav of config.model.path. Raises ConfigurationError."""
    checkpoint, voices = read_checkpoint(config.model.path), list(read_voices(config.model.path))
    return Token2Wav(checkpoint, voices, max_work=config.engine_args.max_model_len)


class WindowFeed:
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
        self._done = 0
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
        window = next_window(self._done, len(self._codes), ended=self._ended, blocks=self._blocks)
        if window is None:
            return None
        self._done = window.until
        return InputPart(self._build(self._codes[window.begin : window.end], window), last=window.last)


class WindowEmitter:
    """Joins the audio of a request's windows. Each window but the last has a tail: the samples after its own audio.

    The tail, one mel frame, is almost equal to the beginning of the next window's audio. The two are cross-faded.
    """

    def __init__(self, shape: AudioShape) -> None:
        self._shape = shape
        self._tail: torch.Tensor | None = None

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one window's audio. Raises ModelExecutionError if it is missing or has an invalid length."""
        audio = step.tensors.get("output")
        if audio is None:
            raise ModelExecutionError("the engine finished a window without audio")
        rest = 0 if "tail" in step.tensors else self._shape.rest
        whole = max(1, (audio.numel() - rest) // self._shape.code) * self._shape.code
        check_audio(audio, whole + rest)
        if self._tail is not None:
            audio = fade_over(self._tail, audio)
        tail = step.tensors.get("tail")
        if tail is not None:
            check_audio(tail, self._shape.frame)
        self._tail = tail
        return StageStep.of_audio(step, audio)


def check_audio(audio: torch.Tensor, samples: int) -> None:
    """Check that the audio is float32 [samples].

    Raises ModelExecutionError. NaN and infinity do not reach this function: the runner ends such a request
    (vllm_adapter/diffusion/runner.py).
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
