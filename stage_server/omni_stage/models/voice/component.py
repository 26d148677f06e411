"""Component voice/vits: speaks text, sentence by sentence."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TEXT_SCHEMA, UTF8
from omni_proto.text import is_spoken, measure
from omni_proto.writing import SentenceCutter, find_clause
from omni_stage.errors import InvalidRequestError, InvalidTensorError, ModelExecutionError
from omni_stage.models.component import (
    EdgeInput,
    EdgeRows,
    Emitter,
    EngineInput,
    EngineStep,
    FinishReason,
    InputPart,
    SpokenText,
    StageRequest,
    StageStep,
)
from omni_stage.models.component.request import pick_voice
from omni_stage.models.shared.text.edge import TextReader, read_text, text_rows
from omni_stage.models.shared.vocoder import vocoder_input, vocoder_kwargs
from omni_stage.models.voice.checkpoint import VoiceCheckpoint, open_reader, read_checkpoint
from omni_stage.models.voice.manifest import VITS
from omni_stage.models.voice.text.symbols import VoiceReader, Written

MAX_IDS: Final = 16_384
"""Symbols of one request, blanks included, by default: about nine minutes of speech."""
UNITS_PER_S: Final = 13.0
"""Units of text (omni_proto.text) that a second of speech has, about."""
STEP_IDS: Final = 4096
"""Symbols in one engine step: about two minutes of speech. A request with more gets a step of its own."""
CPU_STEP_IDS: Final = 512
"""The same on a CPU."""
MAX_BATCH: Final = 64
"""Maximum number of requests in one engine step."""
_WARMUP: Final = ("Hello, this is a test.", "a", "1")
_CONFIG: Final = Path(__file__).with_name("hf_config")


@dataclass(slots=True)
class SpokenPart:
    """Utterances that are spoken together, and where their words are in the text."""

    utterances: list[Written] = field(default_factory=list)
    word_ends: list[int] = field(default_factory=list)
    """For each word, the number of ids of all utterances up to its last symbol's."""
    characters: list[int] = field(default_factory=list)
    """For each word, how many characters of the text have been said at its end."""
    read: int = 0
    """Characters of the text up to the end of the part."""


class VitsVoice:
    """A voice; see the module's docstring."""

    output_schema = None
    default_sampling = VITS.default_sampling

    def __init__(self, checkpoint: VoiceCheckpoint, reader: VoiceReader, max_ids: int | None = None) -> None:
        """`max_ids`: maximum number of symbols of a request."""
        self._checkpoint = checkpoint
        self._reader = reader
        self._max_ids = min(max_ids or MAX_IDS, MAX_IDS)
        self.facts = VITS.model_copy(update={"sample_rate_hz": checkpoint.sample_rate_hz})
        self.voices: Sequence[str] = checkpoint.voices
        self.input_schema = TEXT_SCHEMA

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class, whose unit of work is a symbol."""
        work = {"max_work": MAX_IDS, "step_work": STEP_IDS, "cpu_step_work": CPU_STEP_IDS}
        return {
            **vocoder_kwargs(self._checkpoint.path, max_batch=MAX_BATCH, **work),
            "hf_config_path": str(_CONFIG),
            "load_format": "dummy",  # the model reads its files itself
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert a whole text. A text with nothing to say ends as EMPTY_INPUT."""
        if not isinstance(request.source, EdgeInput):
            raise InvalidRequestError(f"component {VITS.id} reads another stage's text, not a prompt")
        settings = self._settings(request)
        cutter = SentenceCutter()
        whole = SpokenPart()
        for part in (*cutter.add(read_text(request.source.tensors)), *cutter.end()):
            self.read_part(part, whole)
        if not whole.utterances:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        return self.build(whole, 0, settings)

    def open_feed(self, request: StageRequest) -> SentenceFeed:
        """Returns a feed of sentences. The first is spoken while the text is still being written."""
        return SentenceFeed(self, self._settings(request))

    def read_part(self, part: str, spoken: SpokenPart) -> None:
        """Append a part of the text."""
        utterances = self._reader.read(part)
        ids = sum(len(one.ids) for one in spoken.utterances)
        for one in utterances:
            spoken.word_ends += [ids + end for end in one.word_ends]
            ids += len(one.ids)
        spoken.utterances += utterances
        spoken.characters += [spoken.read + place for place in self._reader.place(part, utterances)]
        spoken.read += len(part)

    def _settings(self, request: StageRequest) -> dict[str, Any]:
        """Returns speaker, seed and scales. Raises InvalidRequestError for an unknown voice."""
        checkpoint = self._checkpoint
        seed = request.sampling.seed
        voice = pick_voice(request.voice, self.voices)
        return {
            "speaker": [self.voices.index(voice)],
            "seed": [secrets.randbits(62) if seed is None else seed],
            "scales": [checkpoint.noise, checkpoint.noise_of_durations, checkpoint.length],
        }

    def build(self, spoken: SpokenPart, first: int, settings: dict[str, Any]) -> EngineInput:
        """Returns the engine's input for utterances, of which the first has the number `first` in its request.

        Raises InvalidTensorError if they are too long.
        """
        ids = [symbol for utterance in spoken.utterances for symbol in utterance.ids]
        if len(ids) > self._max_ids:
            raise InvalidTensorError(
                f"utf8: the text takes {len(ids)} symbols of the voice, at most {self._max_ids} fit one request; lower "
                "max_tokens upstream, or set the mode of the stage's input to Stream",
                field="tensors.utf8",
                limit=self._max_ids,
            )
        lengths = [len(utterance.ids) for utterance in spoken.utterances]
        words = torch.tensor([spoken.word_ends, spoken.characters], dtype=torch.int64)
        values = {"ids": torch.tensor(ids, dtype=torch.int32), "lengths": lengths, "first": [first], "words": words}
        values |= settings
        return vocoder_input(len(ids), values)

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that forwards the audio."""
        return VoiceEmitter()

    def warmup_request(self) -> StageRequest:
        """Returns a request for the shortest text that the voice can say."""
        text = next((text for text in _WARMUP if self._reader.read(text)), next(iter(self._reader.table.ids)))
        return StageRequest(
            request_id="warmup",
            source=EdgeInput({name: torch.from_numpy(rows) for name, rows in text_rows(text).items()}),
            sampling=SamplingDefaults(seed=0),
        )


class SentenceFeed:
    """An InputFeed of sentences. A part of the input has the utterances of one sentence, or of a first clause."""

    def __init__(self, voice: VitsVoice, settings: dict[str, Any]) -> None:
        self._voice = voice
        self._settings = settings
        self._text = TextReader()
        self._cutter = SentenceCutter()
        self._ready: deque[str] = deque()
        self._spoken = 0
        self._read = 0
        """Characters of the text that have been taken."""
        self._ended = False

    def add(self, rows: EdgeRows) -> None:
        """Append text. Raises InvalidTensorError."""
        if self._ended:
            return
        self._ended = rows.ended or UTF8 in rows.complete
        self._ready += self._cutter.add(self._text.read(rows.tensors, ended=self._ended))
        if self._ended:
            self._ready += self._cutter.end()

    def next_part_within(self, seconds: float, *, cut: bool) -> InputPart | None:
        """See CutsForPlayback."""
        units = seconds * UNITS_PER_S
        if self._ready:
            part = self._ready[0]
            clause = find_clause(part, units) if measure(part) > units else None
            if clause is not None and is_spoken(part[clause:]):
                self._ready.popleft()
                self._ready.extendleft((part[clause:], part[:clause]))
        elif cut and not self._ended:
            self._ready += self._cutter.cut_early(units)
        return self.next_part()

    def next_part(self) -> InputPart | None:
        """Returns the next sentence's utterances; None if more text must arrive.

        If no text follows the last sentence, the last part has no input and finishes with STOP, or with EMPTY_INPUT if
        there was nothing to say.
        """
        while self._ready:
            spoken = SpokenPart(read=self._read)
            self._voice.read_part(self._ready.popleft(), spoken)
            self._read = spoken.read
            if spoken.utterances:
                part = self._voice.build(spoken, self._spoken, self._settings)
                self._spoken += len(spoken.utterances)
                return InputPart(part)
        if not self._ended:
            return None
        reason = FinishReason.STOP if self._spoken else FinishReason.EMPTY_INPUT
        return InputPart(EngineInput(prompt={}, finished=reason), last=True)


class VoiceEmitter:
    """Forwards one request's audio."""

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step. Raises ModelExecutionError unless its audio is float32 [samples]."""
        audio = step.tensors.get("output")
        if audio is None or audio.dim() != 1 or audio.dtype != torch.float32:
            raise ModelExecutionError("the engine finished a sentence without audio of float32, [samples]")
        made = StageStep.of_audio(step, audio)
        if (words := step.tensors.get("words")) is not None:
            made.spoken = [SpokenText(*pair) for pair in words.T.tolist()]
        return made


def build_component(config: StageConfig) -> VitsVoice:
    """Build the voice of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    return VitsVoice(checkpoint, open_reader(checkpoint), max_ids=config.engine_args.max_model_len)
