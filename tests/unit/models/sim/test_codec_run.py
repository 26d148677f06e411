"""The frames that a paced talker may make from the rows that have arrived."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_stage.errors import PromptTooLongError
from omni_stage.models.component import EdgeRows
from omni_stage.models.sim.stages import CodecRun

PROMPT = 4


def open_run(frames_per_row: float = 0.5, **settings: Any) -> CodecRun:
    given: dict[str, Any] = {"maximum": 4096, "minimum": 0, "ignore_eos": False, "max_model_len": 32_768}
    return CodecRun(frames_per_row, 1, **given | settings)


def text(rows: int, *, ended: bool = False, prompt: int = 0) -> EdgeRows:
    tensors = {"token_ids": np.zeros(prompt + rows, np.int64)}
    if prompt:
        tensors["mrope_positions"] = np.zeros((prompt, 3), np.int64)
    return EdgeRows(tensors, frozenset({"mrope_positions"}), ended)


@pytest.mark.parametrize("frames_per_row", [0.05, 0.5, 1.0, 6.7])
@pytest.mark.parametrize("minimum", [0, 3])
def test_no_frame_is_made_that_the_whole_text_would_not_have(frames_per_row: float, minimum: int) -> None:
    """A run that has made too many frames when the text ends would never reach its last frame."""
    run = open_run(frames_per_row, minimum=minimum)
    run.add(text(1, prompt=PROMPT))
    allowed = [run.allowed]
    for _ in range(9):
        run.add(text(1))
        allowed.append(run.allowed)
    run.add(text(0, ended=True))
    assert allowed[0] >= 1
    assert allowed == sorted(allowed)
    assert allowed[-1] < run.limit == run.allowed


def test_a_prompt_leaves_room_for_one_frame() -> None:
    run = open_run(max_model_len=PROMPT + 3)
    run.add(text(5, prompt=PROMPT))
    assert (run.prompt_tokens, run.limit) == (PROMPT + 2, 1)
    with pytest.raises(PromptTooLongError, match="at most 4 fit") as caught:
        open_run(max_model_len=PROMPT + 3).add(text(5, prompt=PROMPT + 1))
    assert (caught.value.details.field, caught.value.details.limit) == ("tensors.mrope_positions", "4 tokens")
