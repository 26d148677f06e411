"""Component asr/whisper: writes down the words that are spoken in an audio file, or translates them into English.

It runs Whisper of vLLM, whose encoder hears 30 seconds of audio, in the project's autoregressive scheduler and runner.
A request takes one run of the engine for each window (windows.py); requests of all kinds share batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TEXT_SCHEMA, TensorSchema
from omni_stage.decoding.resample import resample
from omni_stage.errors import InvalidMediaError, InvalidRequestError
from omni_stage.models.asr.hearing import MAX_TEXT_BYTES, Hearing, Listener
from omni_stage.models.asr.manifest import ARCHITECTURE, WHISPER
from omni_stage.models.asr.request import find_audio, read_wish
from omni_stage.models.asr.rules import CONFIG_KEY, WhisperRules
from omni_stage.models.asr.vocabulary import FRAMES, RATE_HZ, WhisperTokens, read_tokens
from omni_stage.models.component import (
    AudioPart,
    ChatMessage,
    Emitter,
    EngineInput,
    FinishReason,
    MediaCost,
    StageRequest,
    UserPrompt,
)
from omni_stage.models.shared.text.tokenizer import load_tokenizer

_MAX_SECONDS: Final = 7200
_WINDOW_BYTES: Final = 48 << 20
"""Memory for the spectrogram of one window. The feature extractor of transformers 5.19 takes 20 MiB with 80 bands; the
rest is for 128 bands and for copies."""
_WARMUP_S: Final = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class _HearingInput(EngineInput):
    """The input of a request's first run, with the state of the request."""

    hearing: Hearing | None = None


class Whisper:
    """A speech recognizer; see the module's docstring."""

    facts = WHISPER
    input_schema: TensorSchema | None = None
    output_schema: TensorSchema | None = TEXT_SCHEMA
    default_sampling = WHISPER.default_sampling
    voices: Sequence[str] = ()
    audio_rate_hz = RATE_HZ
    max_aspect_ratio = 1
    max_audio_samples = _MAX_SECONDS * RATE_HZ

    def __init__(
        self,
        model_path: Path,
        tokens: WhisperTokens,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """`encode`, `decode`: text to tokens without special ones, and back."""
        self._model_path = model_path
        self._tokens = tokens
        self._encode = encode
        self._listener = Listener(tokens, decode)

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns vLLM's arguments. The decoder's positions are those of the checkpoint."""
        return {
            "model": str(self._model_path),
            "hf_overrides": {"architectures": [ARCHITECTURE]},
            "max_model_len": self._tokens.positions,
            "least_batched_tokens": FRAMES,
            "limit_mm_per_prompt": {"audio": 1},
            "logits_processors": [f"{WhisperRules.__module__}:{WhisperRules.__name__}"],
            "additional_config": {CONFIG_KEY: self._tokens.as_config()},
        }

    def image_cost(self, width: int, height: int) -> MediaCost:
        """Refuse the image. Raises InvalidMediaError."""
        raise InvalidMediaError("component asr/whisper hears audio only; leave images out")

    def audio_cost(self, samples: int) -> MediaCost:
        """See TakesMedia. The encoder reads one window at a time, and its output takes no position of the decoder."""
        if samples > self.max_audio_samples:
            raise InvalidMediaError(
                f"the audio is longer than {_MAX_SECONDS} s, the most that asr/whisper hears in a request; cut it",
                limit=f"{_MAX_SECONDS} s",
            )
        return MediaCost(tokens=0, engine_input_bytes=_WINDOW_BYTES)

    def max_rows(self, input_rows: int, max_tokens: int) -> int:
        """See BoundsRows. How long the audio is does not count, because the bound is small."""
        return MAX_TEXT_BYTES

    def prepare(self, request: StageRequest) -> EngineInput:
        """Check the request, find the silence, and return the input of the first run."""
        source = request.source
        if not isinstance(source, UserPrompt):
            raise InvalidRequestError("component asr/whisper hears audio, and reads no tensors of another stage")
        if source.reply is not None:
            # The stage that answers speaks it.
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        clip, _ = find_audio(source)
        wish = read_wish(source.template_arguments, self._tokens)
        samples = resample(clip.samples, clip.sampling_rate_hz, RATE_HZ)
        previous = self._encode(f" {wish.prompt}") if wish.prompt else []
        hearing = Hearing(
            self._listener,
            samples,
            wish,
            previous,
            max_tokens=request.sampling.max_tokens,
            publishes=request.want_tensors,
        )
        first = hearing.next_input()
        return _HearingInput(prompt=first.prompt, sampling=first.sampling, finished=first.finished, hearing=hearing)

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns the request's state, which `prepare` made."""
        if not isinstance(prepared, _HearingInput) or prepared.hearing is None:
            raise TypeError("asr/whisper emits only what it has prepared itself")
        return prepared.hearing

    def warmup_request(self) -> StageRequest:
        """Returns a request that hears a tone."""
        tone = 0.1 * np.sin(np.arange(round(_WARMUP_S * RATE_HZ)) * (2 * np.pi * 220 / RATE_HZ))
        heard = AudioPart(tone.astype(np.float32), RATE_HZ)
        return StageRequest(
            request_id="warmup",
            source=UserPrompt(messages=[ChatMessage("user", [heard])]),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=4),
        )


def build_component(config: StageConfig) -> Whisper:
    """Build the component for config.model.path. Raises ConfigurationError."""
    path = Path(config.model.path)
    tokenizer = load_tokenizer(path)
    tokens = read_tokens(path, tokenizer.get_vocab())

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [token_id for token_id in ids if token_id < tokens.end]

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return Whisper(path, tokens, encode, decode)
