"""Component qwen3_omni/code2wav: turns frames of codes into audio as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import InvalidRequestError, InvalidTensorError, ModelExecutionError
from omni_stage.models.component import (
    EdgeInput,
    EdgeRows,
    Emitter,
    EngineInput,
    EngineStep,
    FinishReason,
    InputPart,
    StageRequest,
    StageStep,
)
from omni_stage.models.qwen3_omni.checkpoint import OmniCheckpoint, SpeechFacts, read_speaking_checkpoint
from omni_stage.models.qwen3_omni.manifest import CODE2WAV
from omni_stage.models.qwen3_omni.model_configs import pick_code2wav
from omni_stage.models.qwen3_omni.schemas import talker2code2wav_schema
from omni_stage.models.shared.vocoder import vocoder_input, vocoder_kwargs
from omni_stage.vllm_adapter.scheduling.playback import rows_to_gather

STEP_FRAMES = 1024
"""Maximum number of frames in one engine step, 82 s of speech. A longer request gets a step of its own."""
MAX_BATCH = 64
"""Maximum number of requests in one engine step."""


class Code2Wav:
    """The code2wav of one checkpoint; see the module's docstring."""

    facts = CODE2WAV
    output_schema = None
    default_sampling = CODE2WAV.default_sampling
    voices: Sequence[str] = ()
    """Empty, because the talker has already applied the voice."""

    def __init__(self, checkpoint: OmniCheckpoint, speech: SpeechFacts, max_frames: int | None = None) -> None:
        """`max_frames`: maximum number of frames in one request's audio; by default as many as the model's positions
        allow."""
        self._checkpoint = checkpoint
        self._speech = speech
        self._max_frames = min(max_frames or speech.max_frames, speech.max_frames)
        self.input_schema = talker2code2wav_schema(speech)

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class, whose unit of work is a frame.

        float32, as in transformers, takes a few hundred MiB more than bfloat16, whose rounding would add noise.
        """
        work = {"max_work": self._speech.max_frames, "step_work": STEP_FRAMES}
        return {
            **vocoder_kwargs(self._checkpoint.path, max_batch=MAX_BATCH, **work),
            "hf_overrides": pick_code2wav,
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert the talker's frames. A request of too few frames for any audio ends as EMPTY_INPUT."""
        if not isinstance(request.source, EdgeInput):
            raise InvalidRequestError(f"component {CODE2WAV.id} reads tensors of a talker, not a prompt")
        codes = request.source.tensors.get("codes")
        if codes is not None and codes.shape[0]:
            self._check_frames(codes, 0)
        if codes is None or codes.shape[0] < self._speech.first_frames:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        return self._engine_input({"codes": codes})

    def open_feed(self, request: StageRequest) -> CodesFeed:
        """Returns a feed of chunks of frames. The audio does not depend on the sizes of the chunks."""
        stream = request.request_id

        def build(codes: torch.Tensor, first: int, last: bool) -> EngineInput:
            return self._engine_input({"codes": codes, "stream": [stream], "first_frame": [first], "last": [int(last)]})

        return CodesFeed(self._check_frames, build, self._speech.first_frames)

    def _check_frames(self, codes: torch.Tensor, before: int) -> None:
        """Refuse codes without audio, and more frames than a request may have. Raises InvalidTensorError.

        `before`: number of earlier frames of the request.
        """
        speech = self._speech
        if codes.dim() != 2 or codes.shape[1] != speech.groups:
            raise InvalidTensorError(
                f"codes: must be [frames, {speech.groups}], got {list(codes.shape)}", field="tensors.codes"
            )
        if int(codes.min()) < 0 or int(codes.max()) >= speech.codebook_size:
            raise InvalidTensorError(
                f"codes: every code must be at least 0 and below {speech.codebook_size}",
                field="tensors.codes",
                limit=speech.codebook_size,
            )
        if before + codes.shape[0] > self._max_frames:
            raise InvalidTensorError(
                f"codes: {before + codes.shape[0]} frames, at most {self._max_frames} fit one request; "
                "lower max_tokens upstream",
                field="tensors.codes",
                limit=self._max_frames,
            )

    def _engine_input(self, values: dict[str, Any]) -> EngineInput:
        return vocoder_input(len(values["codes"]), {**values, "codes": values["codes"].contiguous()})

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that forwards the audio and checks its length."""
        return Code2WavEmitter(self._speech)

    def warmup_request(self) -> StageRequest:
        """Returns a request for a stream's first audio and one more frame."""
        codes = torch.zeros(self._speech.first_frames + 1, self._speech.groups, dtype=torch.int64)
        return StageRequest(request_id="warmup", source=EdgeInput({"codes": codes}), sampling=SamplingDefaults())


class Code2WavEmitter:
    """Forwards one request's audio and checks its length: full frames, minus lookahead_samples in the first chunk."""

    def __init__(self, speech: SpeechFacts) -> None:
        self._speech = speech
        self._samples = 0

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step.

        Raises ModelExecutionError if the audio is missing, is not float32 [samples], or does not complete a frame.
        """
        audio = step.tensors.get("output")
        if audio is None:
            raise ModelExecutionError("the engine finished a chunk without audio")
        self._samples += audio.numel()
        whole = self._samples + self._speech.lookahead_samples
        if audio.dim() != 1 or audio.dtype != torch.float32 or whole % self._speech.frame_samples:
            raise ModelExecutionError(
                f"the engine gave audio of {audio.dtype} and shape {tuple(audio.shape)} after "
                f"{self._samples - audio.numel()} samples; it must be float32, [samples], and complete a frame"
            )
        return StageStep.of_audio(step, audio)


def build_component(config: StageConfig) -> Code2Wav:
    """Build the code2wav of config.model.path. Raises ConfigurationError."""
    checkpoint, speech = read_speaking_checkpoint(config.model.path)
    return Code2Wav(checkpoint, speech, max_frames=config.engine_args.max_model_len)


MAX_CHUNK_FRAMES = 100
"""Maximum number of frames in a chunk: 8 s of audio. This bounds how long a request with many waiting frames delays the
other requests of its step."""


class CodesFeed:
    """An InputFeed of chunks, which gathers frames while the listener has audio to play.

    The first chunk and the last one have all waiting frames, at most MAX_CHUNK_FRAMES. Any other has the largest number
    of waiting frames that is a power of two, because such numbers have CUDA graphs; the others wait for the next chunk.
    """

    def __init__(
        self,
        check: Callable[[torch.Tensor, int], None],
        build: Callable[[torch.Tensor, int, bool], EngineInput],
        first_frames: int = 1,
    ) -> None:
        """`check` refuses frames without audio, and too many frames. Its second argument is the number of earlier
        frames.

        `build` makes the engine's input from frames, the index of the first one, and whether these are the last frames.
        `first_frames`: least number of frames of the first chunk, at most MAX_CHUNK_FRAMES; fewer give no audio.
        """
        self._first_frames = first_frames
        self._check = check
        self._build = build
        self._waiting: list[torch.Tensor] = []
        self._taken = 0
        self._came = 0
        self._last_frames = 0
        self._ended = False

    def add(self, rows: EdgeRows) -> None:
        """Add frames int64 [n, groups]. Raises InvalidTensorError."""
        codes = rows.tensors.get("codes")
        if codes is not None and codes.shape[0]:
            self._check(codes, self._came)
            self._waiting.append(codes)
            self._came += codes.shape[0]
        self._ended = self._ended or rows.ended or "codes" in rows.complete

    @property
    def wants_more(self) -> bool:
        """Whether the next chunk should have more frames than wait now; see `rows_to_gather`."""
        return not self._ended and self._came - self._taken < rows_to_gather(self._last_frames)

    def next_part(self) -> InputPart | None:
        """Returns the next chunk; None if no frame waits.

        If the stream ends when no frame waits, the last part has no input and finishes with STOP, or with EMPTY_INPUT
        if there were too few frames for any audio.
        """
        if self._taken == self._came or (not self._taken and self._came < self._first_frames):
            # The end often arrives after the last frame, because frames do not wait for the end.
            return None if not self._ended else self._end()
        waiting = torch.cat(self._waiting)
        frames = min(waiting.shape[0], MAX_CHUNK_FRAMES)
        if self._taken and not self._ended:
            frames = 1 << (frames.bit_length() - 1)
        chunk, rest = waiting[:frames], waiting[frames:]
        self._waiting = [rest] if rest.shape[0] else []
        first, self._taken, self._last_frames = self._taken, self._taken + frames, frames
        last = self._ended and not self._waiting
        return InputPart(self._build(chunk, first, last), last=last)

    def _end(self) -> InputPart:
        reason = FinishReason.STOP if self._taken else FinishReason.EMPTY_INPUT
        return InputPart(EngineInput(prompt={}, finished=reason), last=True)
