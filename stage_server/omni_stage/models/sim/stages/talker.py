"""Component sim/talker: reads a thinker's rows, and writes frames of codes at the pace of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.errors import InvalidRequestError, InvalidTensorError, PromptTooLongError
from omni_stage.exchange import Array
from omni_stage.models.component import EdgeInput, EdgeRows, EdgeStream, FinishReason, StageRequest, StageStep
from omni_stage.models.shared.voices import pick_voice
from omni_stage.models.sim.content import mix
from omni_stage.models.sim.manifest import TALKER, VOICES
from omni_stage.models.sim.schemas import talker2decoder_schema, thinker2talker_schema
from omni_stage.models.sim.tables import Table
from omni_stage.models.sim.virtual_time.clock import Made

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

    def add(self, rows: EdgeRows) -> None:
        """Add rows. Raises InvalidTensorError, PromptTooLongError."""
        self._rows += rows.tensors["token_ids"].shape[0] if "token_ids" in rows.tensors else 0
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
        if ended:
            step.finish_reason = FinishReason.STOP if self._ends_speech else FinishReason.LENGTH
        return step

    def _frames(self, codes: list[int]) -> Array:
        frames = np.array(codes, np.int64)
        return frames if self._codes == 1 else np.repeat(frames[:, None], self._codes, axis=1)
