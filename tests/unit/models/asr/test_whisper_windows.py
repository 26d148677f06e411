"""Windows of asr/whisper: what is kept of each, and where the next one begins; held against transformers."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from omni_stage.models.asr.windows import TICK_S, WINDOW_S, Segment, WindowReader

END, FIRST = 100, 200


def at(seconds: float) -> int:
    """Returns the id of a timestamp."""
    return FIRST + round(seconds / TICK_S)


def read(token_ids: list[int], window_s: float = WINDOW_S, step: int = 1) -> tuple[list[Segment], float]:
    reader = WindowReader(end_id=END, first_timestamp_id=FIRST, window_s=window_s)
    closed = []
    for begin in range(0, len(token_ids), step):
        closed += reader.add(token_ids[begin : begin + step])
    rest, advance_s = reader.end()
    return closed + rest, round(advance_s, 6)


@pytest.mark.parametrize(
    ("token_ids", "window_s", "segments", "advance_s"),
    [
        pytest.param([at(0), 1, 2, at(3), END], 30, [((1, 2), 0, 3)], 30, id="one segment fills the window"),
        pytest.param([at(0.5), 1, END], 12, [((1,), 0, 12)], 12, id="no end stated"),
        pytest.param([1, 2, END], 30, [((1, 2), 0, 30)], 30, id="no timestamp at all"),
        pytest.param(
            [at(0), 1, at(4), at(5), 2, at(9), END], 30, [((1,), 0, 4), ((2,), 5, 9)], 30, id="ends with one timestamp"
        ),
        pytest.param(
            [at(0), 1, at(4), at(4), 2, 3, END], 30, [((1,), 0, 4)], 4, id="what the window cuts is heard again"
        ),
        pytest.param([at(0), 1, at(28), at(28), END], 30, [((1,), 0, 28)], 28, id="ends with a pair"),
        pytest.param(
            [at(0), 1, at(0.2), at(0.2), 2, END], 30, [((1,), 0, 0.2), ((2,), 0.2, 30)], 30, id="too little to repeat"
        ),
        pytest.param([at(0), 1, at(0.2), at(0.2), END], 30, [((1,), 0, 0.2)], 0.5, id="always advances"),
        pytest.param([at(0), 1, at(9), END], 5, [((1,), 0, 5)], 5, id="no word is later than the audio"),
        pytest.param([END], 30, [((), 0, 30)], 30, id="nothing heard"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 100])
def test_windows(
    token_ids: list[int],
    window_s: float,
    segments: list[tuple[tuple[int, ...], float, float]],
    advance_s: float,
    step: int,
) -> None:
    """The same, however many tokens a step of the engine brings."""
    found, advance = read(token_ids, window_s, step)
    assert [(one.token_ids, round(one.start_s, 6), round(one.end_s, 6)) for one in found] == segments
    assert advance == advance_s


@pytest.mark.parametrize("seed", range(60))
def test_windows_are_cut_as_by_transformers(seed: int) -> None:
    """Random windows, as the rules of timestamps allow them."""
    rng = random.Random(seed)
    token_ids, seconds = [at(rng.randrange(50) * TICK_S)], 1.0
    for _ in range(rng.randrange(1, 5)):
        token_ids += [rng.randrange(END) for _ in range(rng.randrange(1, 5))]
        seconds += rng.randrange(50, 200) * TICK_S
        token_ids += [at(seconds), at(seconds + rng.randrange(3) * TICK_S)]
    if rng.random() < 0.7:
        token_ids += [rng.randrange(END) for _ in range(3)]
        token_ids += [at(seconds + 2)] if rng.random() < 0.5 else []
    expected, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(token_ids),
        seek_outputs=[None],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([3000]),
        time_precision=TICK_S,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 4),
    )
    found, advance_s = read([*token_ids, END])
    wanted = [
        (
            tuple(t for t in one["tokens"].tolist() if t < END),
            round(float(one["start"]), 6),
            round(float(one["end"]), 6),
        )
        for one in expected
    ]
    assert [(one.token_ids, round(one.start_s, 6), round(one.end_s, 6)) for one in found] == wanted
    assert advance_s == pytest.approx(float(offset) / 100)
