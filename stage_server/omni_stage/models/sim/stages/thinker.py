"""Component sim/thinker: reads a prompt, and writes words, and rows for a talker, at the pace of a table."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.errors import InvalidRequestError, PromptTooLongError
from omni_stage.exchange import Array
from omni_stage.models.component import FinishReason, StageRequest, StageStep, UserPrompt
from omni_stage.models.sim.content import END_OF_TEXT, RowBank, prompt_ids, reply_length, word_id, word_text
from omni_stage.models.sim.manifest import THINKER
from omni_stage.models.sim.schemas import thinker2talker_schema
from omni_stage.models.sim.tables import Table
from omni_stage.models.sim.virtual_time.clock import Made

_PROMPT_TENSORS = frozenset({"mrope_positions", "mrope_delta"})


class Thinker:
    """The thinker of one table."""

    facts = THINKER
    input_schema: TensorSchema | None = None
    default_sampling = THINKER.default_sampling
    voices: Sequence[str] = ()

    def __init__(self, table: Table, config: StageConfig, max_model_len: int) -> None:
        self.output_schema: TensorSchema | None = thinker2talker_schema(table)
        # Each frame needs one row of the reply, and the first step has only the prompt's rows.
        self.first_audio_steps = table.decoder.first_frames + table.decoder.ahead_frames + 1
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
        self.limit = tokens
        self.allowed = tokens
        self._ids: list[int] | None = ids
        self._seed = seed
        self._bank = bank
        self._ends_text = ends_text
        self._stopped = stopped
        self._rows = rows
        self._last_id: int | None = None

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
        prompt, self._ids = self._ids, None
        step = StageStep(
            text=text, token_ids=tokens, prompt_token_ids=prompt, scheduled_ns=int(made[0].scheduled * 1e9)
        )
        if self._rows:
            step.tensors = self._tensors(prompt, tokens)
            step.complete_tensors = _PROMPT_TENSORS
        if made[-1].last:
            step.finish_reason = FinishReason.STOP if self._stopped else FinishReason.LENGTH
            step.stop_reason = str(tokens[-1]) if self._stopped and not self._ends_text else ""
        return step

    def _tensors(self, prompt: list[int] | None, tokens: list[int]) -> dict[str, Array]:
        """Returns an id and a row for each computed position. The last token's position belongs to the next step."""
        ids = prompt if prompt is not None else [] if self._last_id is None else [self._last_id]
        ids = [*ids, *tokens[:-1]]
        self._last_id = tokens[-1]
        tensors: dict[str, Array] = {"token_ids": np.array(ids, np.int64)}
        if self._bank is not None:
            tensors["x"] = self._bank.rows(ids)
        if prompt is not None:
            positions = np.arange(len(prompt), dtype=np.int64)
            tensors["mrope_positions"] = np.repeat(positions[:, None], 3, axis=1)
            tensors["mrope_delta"] = np.zeros(1, np.int64)
        return tensors
