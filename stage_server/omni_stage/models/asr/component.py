"""Component asr/whisper: writes down the words that are spoken in an audio file, or translates them into English.

It runs Whisper of vLLM, whose encoder hears 30 seconds of audio, in the project's autoregressive scheduler and runner.
A request (Hearing) takes one run of the engine for each window (windows.py); requests of all kinds share batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TEXT_SCHEMA, TensorSchema
from omni_stage.decoding.resample import resample
from omni_stage.errors import InvalidMediaError, InvalidRequestError
from omni_stage.models.asr.manifest import ARCHITECTURE, WHISPER
from omni_stage.models.asr.rules import CONFIG_KEY, WhisperRules
from omni_stage.models.asr.vocabulary import FRAMES, RATE_HZ, TASKS, WhisperTokens, read_tokens
from omni_stage.models.asr.windows import WINDOW_S, LoudFrames, Segment, WindowReader
from omni_stage.models.component import (
    AudioPart,
    ChatMessage,
    Emitter,
    EngineInput,
    EngineStep,
    FinishReason,
    MediaCost,
    SpokenSegment,
    StageRequest,
    StageStep,
    TextPart,
    UserPrompt,
)
from omni_stage.models.shared.text.edge import text_rows
from omni_stage.models.shared.text.tokenizer import load_tokenizer

_ARGUMENTS: Final = "start.chat.template_arguments"


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of a request."""

    task: str = "transcribe"
    language: int | None = None
    """Id of the language's token; None: the model names it, or knows only one."""
    prompt: str = ""
    timed: bool = False
    """Whether the client asks when words were spoken."""


def find_audio(source: UserPrompt) -> tuple[AudioPart, str]:
    """Returns the audio of the conversation's last message, and its path in Start. Earlier messages are not read.

    Raises InvalidRequestError if that message is anything but one audio file.
    """
    if not source.messages:
        raise InvalidRequestError(
            "component asr/whisper hears; send a chat whose last message holds one audio file, or, for an answer, text",
            field="start.input",
        )
    number = len(source.messages) - 1
    path, parts = f"start.chat.messages[{number}].parts", source.messages[number].parts
    heard = [(part, f"{path}[{index}].audio") for index, part in enumerate(parts) if isinstance(part, AudioPart)]
    if len(heard) != 1 or source.messages[number].role != "user":
        raise InvalidRequestError(
            f"component asr/whisper hears one audio file, in the last message, of the user; it has {len(heard)}",
            field=path,
        )
    if any(part.text.strip() for part in parts if isinstance(part, TextPart)):
        raise InvalidRequestError(
            "component asr/whisper reads no text beside the audio; say it, or send it in "
            f"{_ARGUMENTS}.prompt as a hint",
            field=path,
        )
    return heard[0]


def read_wish(arguments: Mapping[str, Any], tokens: WhisperTokens) -> Wish:
    """Returns the options in a prompt's template arguments; unknown ones are ignored. Raises InvalidRequestError."""
    task, timed = arguments.get("task", "transcribe"), arguments.get("timestamps", False)
    if task not in TASKS or (task == "translate" and not tokens.tasks):
        known = TASKS if tokens.tasks else TASKS[:1]
        raise _bad("task", f"must be {' or '.join(known)} for this checkpoint", ", ".join(known))
    if not isinstance(timed, bool):
        raise _bad("timestamps", "must be true or false", "true, false")
    prompt = arguments.get("prompt", "")
    if not isinstance(prompt, str):
        raise _bad("prompt", "must be a text", "text")
    return Wish(task, _find_language(arguments.get("language"), tokens), prompt.strip(), timed)


def _find_language(given: Any, tokens: WhisperTokens) -> int | None:
    if given is None or given == "":
        return None
    code = given.partition("-")[0].lower() if isinstance(given, str) else ""
    if not tokens.languages and code == "en":
        return None
    if code not in tokens.languages:
        known = ", ".join(sorted(tokens.languages)) or "en"
        raise _bad("language", f"is not one that the checkpoint knows; these are {known}", known)
    return tokens.languages[code]


def _bad(name: str, problem: str, limit: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {problem}", field=f"{_ARGUMENTS}.{name}", limit=limit)


MAX_TEXT_BYTES: Final = 512 << 10
"""Maximum bytes of a transcript: nine hours of fast speech in English."""
_LAST_WINDOW_BYTES: Final = 256 << 10
"""More than one window can add: at most 448 tokens, none of which has 500 bytes."""
_LANGUAGE_STEP: Final = {"max_tokens": 1, "min_tokens": 0, "temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Listener:
    """What the requests of one checkpoint share."""

    tokens: WhisperTokens
    decode: Callable[[Sequence[int]], str]
    """Returns the text of tokens."""


class Hearing:
    """The emitter of one request, and the source of its runs (RunsAgain).

    If the language is not given, the first run names it. Then each run hears one window. Audio that fits a window, and
    whose times are not asked for, is written without timestamps, so that its text can be sent token by token. Otherwise
    the text is sent as soon as a segment is complete, because the end of a window may be heard again (windows.py).
    """

    def __init__(
        self,
        listener: Listener,
        samples: np.ndarray,
        wish: Wish,
        previous: Sequence[int],
        *,
        max_tokens: int | None,
        publishes: bool,
    ) -> None:
        """samples: float32 at RATE_HZ. previous: tokens of the prompt's text. max_tokens: of the whole request.

        publishes: whether another stage reads the text.
        """
        self._tokens, self._decode = listener.tokens, listener.decode
        self._samples, self._wish, self._previous = samples, wish, previous
        self._loud = LoudFrames.of(samples, RATE_HZ)
        self._end_s = self._loud.end_s()
        self._language = wish.language
        self._left = max_tokens
        self._publishes, self._text_bytes = publishes, 0
        self._start_s = self._loud.next_start(0.0)
        self._timed = wish.timed or (self._start_s is not None and self._end_s - self._start_s > WINDOW_S)
        self._reader: WindowReader | None = None
        self._names_language = False
        self._is_first = True
        self._was_cut = False

    def next_input(self) -> EngineInput:
        """See RunsAgain. Also returns the input of the first run."""
        if self._start_s is None:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        first = round(self._start_s * RATE_HZ)
        window = self._samples[first : first + round(WINDOW_S * RATE_HZ)]
        self._names_language = bool(self._tokens.languages) and self._language is None
        if self._names_language:
            return self._hear(window, [self._tokens.start], _LANGUAGE_STEP)
        ids = self._tokens.prompt(self._language, self._wish.task, self._previous, timed=self._timed)
        room = self._tokens.positions - len(ids)
        self._reader = WindowReader(
            end_id=self._tokens.end,
            first_timestamp_id=self._tokens.first_timestamp,
            window_s=min(window.size / RATE_HZ, self._end_s - self._start_s),
        )
        return self._hear(window, ids, {"max_tokens": room if self._left is None else min(room, self._left)})

    def _hear(self, window: np.ndarray, ids: list[int], sampling: dict[str, Any]) -> EngineInput:
        prompt = {"prompt_token_ids": ids, "multi_modal_data": {"audio": [(window, RATE_HZ)]}}
        return EngineInput(prompt=prompt, sampling=sampling)

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step of the running run. Only the request's last step has a finish_reason."""
        made = self._read(step)
        if made.finish_reason is not None:
            made.language = self._tokens.language_of(self._language)
        if made.text:
            self._text_bytes += len(made.text.encode())
            if self._publishes:
                made.tensors = text_rows(made.text)
        return made

    def _read(self, step: EngineStep) -> StageStep:
        made = StageStep.of(step)
        made.finish_reason, made.stop_reason = None, ""
        if self._names_language:
            self._language = next(iter(step.token_ids), None)
            made.text, made.token_ids = "", []
            return made
        if not self._is_first:
            made.prompt_token_ids = None  # the same in every window; counted once
        self._is_first = self._is_first and step.finish_reason is None
        if self._left is not None:
            self._left -= len(step.token_ids)
        if not self._timed:
            made.finish_reason, made.stop_reason = step.finish_reason, step.stop_reason
            return made
        made.text, made.segments = "", ()
        if self._reader is not None:
            closed = self._reader.add(step.token_ids)
            start_s = self._start_s or 0.0
            if step.finish_reason is not None:
                rest, advance_s = self._reader.end()
                closed += rest
                made.finish_reason = self._advance(advance_s, step.finish_reason)
            made.segments = [self._place(one, start_s) for one in closed if one.token_ids]
            made.text = "".join(one.text for one in made.segments)
        return made

    def _place(self, segment: Segment, window_s: float) -> SpokenSegment:
        return SpokenSegment(self._decode(segment.token_ids), window_s + segment.start_s, window_s + segment.end_s)

    def _advance(self, seconds: float, reason: FinishReason) -> FinishReason | None:
        """Move to the next window. Returns how the request ends; None if there is a next window."""
        start_s = (self._start_s or 0.0) + seconds
        if reason is FinishReason.LENGTH:
            if self._left is not None and self._left <= 0:
                return reason
            # Without a pair of timestamps, nobody knows where the words that are missing would begin.
            self._was_cut = self._was_cut or not (self._reader and self._reader.has_pair)
        self._start_s = self._loud.next_start(start_s) if start_s < self._end_s else None
        if self._start_s is not None:
            return FinishReason.LENGTH if self._text_bytes > MAX_TEXT_BYTES - _LAST_WINDOW_BYTES else None
        return FinishReason.LENGTH if self._was_cut else FinishReason.STOP


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
        if source.reply is not None or source.written:
            # The stage that answers reads it.
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
