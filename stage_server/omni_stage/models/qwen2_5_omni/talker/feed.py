"""The talker's streamed input: the thinker's rows, as they come, to parts of the engine's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omni_stage.models.component import FinishReason, StageInput
from omni_stage.models.edge_stream import EdgeRows, InputPart
from omni_stage.models.qwen2_5_omni.checkpoint import CodecTokens
from omni_stage.models.qwen2_5_omni.processors import TalkerConditioning
from omni_stage.payloads import AdditionalInformationPayload

REPEAT_LIMIT = 500
"""One codec token this often in a row, ten seconds of one sound, ends the stream: now and then a talker misses its own
end and hums or is silent until max_tokens. transformers has no such guard; speech does not come near it."""


class TalkerFeed:
    """An InputFeed. The engine goes on with the tokens that it sampled; what it needs of us are the rows."""

    def __init__(self, conditioning: TalkerConditioning, codec: CodecTokens, *, goes_on: bool) -> None:
        """`goes_on`: whether the end of the codec stream is never written, instead of ending the request."""
        self._conditioning = conditioning
        self._suppress: Sequence[int] = codec.stop_ids if goes_on else ()
        self._stop: Sequence[int] = () if goes_on else codec.stop_ids
        self._repeat_limit = None if goes_on else REPEAT_LIMIT

    def add(self, rows: EdgeRows) -> None:
        """Take rows of the thinker. Raises InvalidTensorError."""
        self._conditioning.add(rows)

    def next_part(self) -> InputPart | None:
        """The rows that came, at their positions. A reply without text ends as EMPTY_INPUT."""
        part = self._conditioning.take()
        if part is None:
            if not self._conditioning.ended:
                return None
            return InputPart(StageInput(prompt={}, finished=FinishReason.EMPTY_INPUT), last=True)
        information: dict[str, torch.Tensor | list[Any]] = {"input_rows": part.rows}
        prompt: dict[str, Any] = {}
        if part.prompt is None:
            information["input_rows_offset"] = [part.offset]
        else:
            prompt["prompt_token_ids"] = part.prompt.prompt_token_ids
            information["mrope_positions"] = part.prompt.mrope_positions
            information["mrope_delta"] = [part.prompt.mrope_delta]
        stage_input = StageInput(
            prompt=prompt,
            additional_information=AdditionalInformationPayload.from_mapping(information),
            suppress_token_ids=self._suppress,
            stop_token_ids=self._stop,
            repeat_limit=self._repeat_limit,
        )
        return InputPart(stage_input, max_tokens=part.max_tokens, last=part.last)
