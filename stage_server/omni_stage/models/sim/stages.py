"""Components that work at the pace of a table.

sim/thinker reads a prompt, and writes words, and rows for a talker. sim/talker reads these rows, and writes frames of
codes. sim/decoder reads the frames, and writes audio.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.errors import InvalidRequestError, InvalidTensorError, PromptTooLongError
from omni_stage.exchange import Array
from omni_stage.models.component import (
    EdgeInput,
    EdgeRows,
    EdgeStream,
    FinishReason,
    StageRequest,
    StageStep,
    UserPrompt,
)
from omni_stage.models.component.request import pick_voice
from omni_stage.models.sim.content import (
    END_OF_TEXT,
    RowBank,
    VoiceAudio,
    mix,
    prompt_ids,
    reply_length,
    word_id,
    word_text,
)
from omni_stage.models.sim.manifest import DECODER, TALKER, TALKER_TO_DECODER, THINKER, THINKER_TO_TALKER, VOICES
from omni_stage.models.sim.tables import Table
from omni_stage.models.sim.virtual_time.clock import Made


def thinker2talker_schema(table: Table) -> TensorSchema:
    """Returns the schema of the edge from thinker to talker.

    A row takes 7 KiB if it has 3,584 values, or 8 bytes if only token ids are sent.
    """
    values = table.thinker.row_values
    described = "Prompt rows, then reply rows; the reply's last token has none."
    rows = (TensorSpec("x", "bfloat16", (values,), described),) if values else ()
    return TensorSchema(
        id=THINKER_TO_TALKER,
        version=1,
        tensors=(
            *rows,
            TensorSpec("token_ids", "int64", (), "Prompt, then reply; the reply's last token is left out."),
            TensorSpec("mrope_positions", "int64", (3,), "Time, height and width positions; one row per prompt token."),
            TensorSpec(
                "mrope_delta", "int64", (), "One row: position of the first reply token minus number of prompt tokens."
            ),
        ),
    )


def talker2decoder_schema(table: Table) -> TensorSchema:
    """Returns the schema of the edge from talker to decoder: one row for each frame."""
    shape = () if table.talker.frame_codes == 1 else (table.talker.frame_codes,)
    return TensorSchema(
        id=TALKER_TO_DECODER,
        version=1,
        tensors=(TensorSpec("codes", "int64", shape, "Codes of a frame; the end of the stream is left out."),),
    )


_PROMPT_TENSORS = frozenset({"mrope_positions", "mrope_delta"})


class Thinker:
    """The thinker of one table."""

    facts = THINKER
    input_schema: TensorSchema | None = None
    default_sampling = THINKER.default_sampling
    voices: Sequence[str] = ()

    def __init__(self, table: Table, config: StageConfig, max_model_len: int) -> None:
        self.output_schema: TensorSchema | None = thinker2talker_schema(table)
        # Each frame needs one row of the reply. The first step has only the prompt's rows, and the first id.
        self.first_audio_steps = (
            table.decoder.first_frames + table.decoder.ahead_frames + bool(table.thinker.row_values)
        )
        self.row_plays_s: float | None = 1 / table.talker.frames_per_second
        self._shape = table.thinker
        self._max_model_len = max_model_len
        values = table.thinker.row_values
        self._bank = RowBank(values) if values and config.downstream else None

    def open(self, request: StageRequest) -> TextRun:
        """Returns the run of a request. Raises InvalidRequestError, PromptTooLongError."""
        if not isinstance(request.source, UserPrompt):
            raise InvalidRequestError(f"component {THINKER.id} reads a prompt, not tensors of another stage")
        ids = prompt_ids(request.source)
        room = self._max_model_len - len(ids)
        if room < 1:
            raise PromptTooLongError(
                f"the prompt has {len(ids)} tokens, at most {self._max_model_len - 1} fit; shorten the prompt",
                field="start.input",
                limit=f"{self._max_model_len - 1} tokens",
                actual=f"{len(ids)} tokens",
            )
        sampling = request.sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        maximum = min(sampling.max_tokens or room, room)
        # The end of the text is one more token.
        natural = max(reply_length(seed, *self._shape.reply_tokens), sampling.min_tokens or 0) + 1
        ends = not sampling.ignore_eos and natural <= maximum
        stops = frozenset(sampling.stop_token_ids or ())
        tokens, stopped = natural if ends else maximum, ends
        if stops:
            begin = sampling.min_tokens or 0
            found = next((at for at in range(begin, tokens) if word_id(seed, at) in stops), None)
            tokens, stopped = (tokens, stopped) if found is None else (found + 1, True)
        return TextRun(
            ids,
            seed,
            tokens,
            self._bank,
            ends_text=ends and tokens == natural,
            stopped=stopped,
            rows=request.want_tensors,
        )


class TextRun:
    """One request."""

    def __init__(
        self,
        ids: list[int],
        seed: int,
        tokens: int,
        bank: RowBank | None,
        *,
        ends_text: bool,
        stopped: bool,
        rows: bool,
    ) -> None:
        """`bank`: None if ids are sent without rows.

        `ends_text`: whether the last token is the end-of-text token; `stopped`: whether the end-of-text token or a stop
        token ends the reply. Otherwise its maximum length ends it.
        """
        self.prompt_tokens = len(ids)
        self.prompt_ids = ids
        self.limit = tokens
        self.allowed = tokens
        self._is_first = True
        self._seed = seed
        self._bank = bank
        self._ends_text = ends_text
        self._stopped = stopped
        self._rows = rows
        self._held: list[int] = []

    def step(self, made: Sequence[Made]) -> StageStep:
        """Returns one stage step for tokens that were delivered together."""
        tokens: list[int] = []
        text = ""
        for one in made:
            if one.last and self._ends_text:
                tokens.append(END_OF_TEXT)
            else:
                tokens.append(word_id(self._seed, one.index))
                text += word_text(tokens[-1], one.index)
        prompt, self._is_first = self.prompt_ids if self._is_first else None, False
        step = StageStep(
            text=text,
            token_ids=tokens,
            prompt_token_ids=prompt,
            cached_tokens=made[0].cached if prompt is not None else 0,
            scheduled_ns=int(made[0].scheduled * 1e9),
        )
        if self._rows:
            step.tensors = self._tensors(prompt, tokens, is_last=made[-1].last)
            step.complete_tensors = _PROMPT_TENSORS
        if made[-1].last:
            step.finish_reason = FinishReason.STOP if self._stopped else FinishReason.LENGTH
            step.stop_reason = str(tokens[-1]) if self._stopped and not self._ends_text else ""
        return step

    def _tensors(self, prompt: list[int] | None, tokens: list[int], *, is_last: bool) -> dict[str, Array]:
        """Returns an id and a row for each computed position. The last token's position belongs to the next step. If
        only ids are sent, they need no position to be computed: all are sent but the reply's last one."""
        ids = [*(prompt or ()), *self._held, *tokens]
        held = int(self._bank is not None or is_last)
        self._held = ids[len(ids) - held :]
        ids = ids[: len(ids) - held]
        tensors: dict[str, Array] = {"token_ids": np.array(ids, np.int64)}
        if self._bank is not None:
            tensors["x"] = self._bank.rows(ids)
        if prompt is not None:
            positions = np.arange(len(prompt), dtype=np.int64)
            tensors["mrope_positions"] = np.repeat(positions[:, None], 3, axis=1)
            tensors["mrope_delta"] = np.zeros(1, np.int64)
        return tensors


class Decoder:
    """The decoder of one table."""

    facts = DECODER
    output_schema: TensorSchema | None = None
    default_sampling = DECODER.default_sampling
    voices: Sequence[str] = VOICES

    def __init__(self, table: Table, config: StageConfig, max_model_len: int) -> None:
        self.input_schema: TensorSchema | None = talker2decoder_schema(table)
        self.samples_per_frame = table.samples_per_frame
        self.max_frames = max_model_len
        self._audio = {voice: VoiceAudio(voice) for voice in VOICES}

    def voice_audio(self, request: StageRequest) -> VoiceAudio:
        """Returns the audio of a request. Raises InvalidRequestError for an unknown voice."""
        return self._audio[pick_voice(request.voice, self.voices)]


_FRAMING = 2
"""Number of positions between the thinker's prompt and the first frame: the start of the text and of the codes."""
_CODES = 2048
_END_OF_CODES = 2150


class Talker:
    """The talker of one table."""

    facts = TALKER
    default_sampling = TALKER.default_sampling
    voices: Sequence[str] = VOICES

    def __init__(self, table: Table, config: StageConfig, max_model_len: int) -> None:
        self.input_schema: TensorSchema | None = thinker2talker_schema(table)
        self.output_schema: TensorSchema | None = talker2decoder_schema(table)
        self.first_audio_steps = table.decoder.first_frames + table.decoder.ahead_frames
        self.row_plays_s: float | None = 1 / table.talker.frames_per_second
        self._shape = table.talker
        self._max_model_len = max_model_len

    def open(self, request: StageRequest) -> CodecRun:
        """Returns the run of a request. If the input is streamed, its rows must still be added.

        Raises InvalidRequestError, InvalidTensorError, PromptTooLongError.
        """
        if not isinstance(request.source, EdgeInput | EdgeStream):
            raise InvalidRequestError(f"component {TALKER.id} reads tensors of a thinker, not a prompt")
        pick_voice(request.voice, self.voices)
        frames_per_row = self._shape.seconds_per_text_token * self._shape.frames_per_second
        sampling = request.sampling
        run = CodecRun(
            frames_per_row,
            self._shape.frame_codes,
            maximum=sampling.max_tokens or self._max_model_len,
            minimum=sampling.min_tokens or 0,
            ignore_eos=bool(sampling.ignore_eos),
            max_model_len=self._max_model_len,
        )
        if isinstance(request.source, EdgeInput):
            run.add(EdgeRows(request.source.tensors, ended=True))
        return run


class CodecRun:
    """One request. Each frame needs one row of the text. After the text has ended, frames need no rows."""

    def __init__(
        self, frames_per_row: float, codes: int, *, maximum: int, minimum: int, ignore_eos: bool, max_model_len: int
    ) -> None:
        """`codes`: codes per frame; `maximum`, `minimum`: bounds of the number of frames; `ignore_eos`: whether to make
        `maximum` frames however long the text is."""
        self.prompt_tokens = 0
        self.limit = 1
        self.allowed = 0
        self._frames_per_row = frames_per_row
        self._codes = codes
        self._maximum = maximum
        self._minimum = minimum
        self._ignore_eos = ignore_eos
        self._max_model_len = max_model_len
        self._rows = 0
        self._positions = 0
        self._ids: list[Array] = []
        self._ended = False
        self._ends_speech = False
        self._prompt_reported = False

    @property
    def is_startable(self) -> bool:
        """Whether the prompt's length is known and the row of the first frame has arrived."""
        return self.prompt_tokens > 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to speak."""
        return self._ended and self._rows <= self._positions

    @property
    def has_all(self) -> bool:
        """Whether all rows have arrived."""
        return self._ended

    @property
    def prompt_ids(self) -> list[int]:
        """The thinker's prompt, once it has arrived. Its rows are made of these ids."""
        return np.concatenate(self._ids)[: self._positions].tolist()

    def add(self, rows: EdgeRows) -> None:
        """Add rows. Raises InvalidTensorError, PromptTooLongError."""
        if (ids := rows.tensors.get("token_ids")) is not None:
            self._rows += ids.shape[0]
            if not self.is_startable:
                self._ids.append(ids)
        self._positions += rows.tensors["mrope_positions"].shape[0] if "mrope_positions" in rows.tensors else 0
        self._ended = self._ended or rows.ended
        known = self._ended or "mrope_positions" in rows.complete
        if self._ended and (self._rows < self._positions or not self._positions):
            raise InvalidTensorError(
                f"token_ids: {self._rows} rows do not fit the {self._positions} prompt tokens of mrope_positions",
                field="tensors.token_ids",
            )
        if not self.prompt_tokens and not (known and self._rows > self._positions):
            return
        self.prompt_tokens = self._positions + _FRAMING
        room = self._max_model_len - self.prompt_tokens
        if room < 1:
            fits = self._max_model_len - _FRAMING - 1
            raise PromptTooLongError(
                f"mrope_positions: the thinker's prompt has {self._positions} tokens, at most {fits} fit "
                "(engineArgs.maxModelLen of this stage); shorten the prompt",
                field="tensors.mrope_positions",
                limit=f"{fits} tokens",
                actual=f"{self._positions} tokens",
            )
        text_rows = self._rows - self._positions
        spoken = math.ceil(text_rows * self._frames_per_row)
        maximum = min(self._maximum, room)
        # Allow only the frames that these rows would have if the text ended here. So if the text does end here, the run
        # has not made too many frames.
        self.limit, self.allowed = maximum, min(text_rows, spoken, maximum)
        if self._ended:
            # The end of speech takes one further step.
            natural = max(spoken, self._minimum) + 1
            self._ends_speech = not self._ignore_eos and natural <= maximum
            self.limit = self.allowed = natural if self._ends_speech else maximum

    def step(self, made: Sequence[Made]) -> StageStep:
        """Returns one stage step for frames that were delivered together."""
        ended = made[-1].last
        tokens = [mix(0, one.index) % _CODES for one in made]
        if ended and self._ends_speech:
            tokens[-1] = _END_OF_CODES
        codes = tokens[:-1] if ended and self._ends_speech else tokens
        step = StageStep(token_ids=tokens, scheduled_ns=int(made[0].scheduled * 1e9))
        if codes:
            step.tensors = {"codes": self._frames(codes)}
        if not self._prompt_reported:
            self._prompt_reported = True
            step.prompt_token_ids = [0] * self.prompt_tokens
            step.cached_tokens = made[0].cached
        if ended:
            step.finish_reason = FinishReason.STOP if self._ends_speech else FinishReason.LENGTH
        return step

    def _frames(self, codes: list[int]) -> Array:
        frames = np.array(codes, np.int64)
        return frames if self._codes == 1 else np.repeat(frames[:, None], self._codes, axis=1)
