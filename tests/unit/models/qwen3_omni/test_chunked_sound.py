"""Chunk by chunk, code2wav gives as many samples as transformers' code2wav in one pass, equal within 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni_stage.errors import ModelExecutionError
from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.streams import StateLayout, States, StreamPool

TOLERANCE = 1e-5
FRAME, LOOKAHEAD = 1920, 555


@pytest.fixture(scope="module", params=["small", pytest.param("wide", marks=pytest.mark.full)])
def code2wav(request: pytest.FixtureRequest, make_tiny_checkpoint: Callable[..., Path]) -> Any:
    checkpoint = make_tiny_checkpoint(0, request.param, "qwen3_omni")
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).code2wav.eval()


def draw(code2wav: Any, frames: int, seed: int = 0, sounds: int = 1) -> torch.Tensor:
    """Returns random codes: int64 [sounds, groups, frames]."""
    generator = torch.Generator().manual_seed(seed)
    config = code2wav.config
    return torch.randint(config.codebook_size, (sounds, config.num_quantizers, frames), generator=generator)


@torch.inference_mode()
def run(code2wav: Any, codes: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Returns the audio of each chunk of `size` frames."""
    decoder = ChunkDecoder(code2wav)
    states, chunks = decoder.layout.zeros(codes.shape[0], decoder.device), []
    for begin in range(0, codes.shape[2], size):
        audio, states = decoder.advance(codes[:, :, begin : begin + size], [begin] * codes.shape[0], states)
        chunks.append(audio)
    return chunks


@pytest.mark.parametrize("frames", [pytest.param(None, id="five windows"), pytest.param(2000, marks=pytest.mark.full)])
@pytest.mark.parametrize("size", [1, 4, 25, 10_000])
def test_chunks_of_any_size_are_one_forward(code2wav: Any, size: int, frames: int | None) -> None:
    # Much longer than the attention window, because with fewer frames a lost state would hardly change the audio.
    frames = frames or 5 * code2wav.config.sliding_window
    codes = draw(code2wav, frames)
    with torch.inference_mode():
        expected = code2wav(codes)[:, 0]
    chunks = run(code2wav, codes, size)
    assert chunks[0].shape[1] == min(size, frames) * FRAME - LOOKAHEAD, "the last 555 samples need a further frame"
    assert all(chunk.shape[1] == size * FRAME for chunk in chunks[1:-1])
    torch.testing.assert_close(torch.cat(chunks, dim=1), expected, atol=TOLERANCE, rtol=0)
    assert expected.abs().max() > 0.2, "the audio must not be nearly silent, or the comparison is meaningless"


def test_every_layer_needs_its_past(code2wav: Any) -> None:
    """Zeroing any tensor of the state changes the audio. Otherwise the comparison could not notice a lost state."""
    codes = draw(code2wav, 8, seed=3)
    decoder = ChunkDecoder(code2wav)
    with torch.inference_mode():
        _, states = decoder.advance(codes[..., :6], [0], decoder.layout.zeros(1, decoder.device))
        expected, _ = decoder.advance(codes[..., 6:], [6], states)
        for index, kept in enumerate((states.attention, *states.columns)):
            if not kept.numel():
                continue
            before = kept.clone()
            kept.zero_()
            audio, _ = decoder.advance(codes[..., 6:], [6], states)
            assert (audio - expected).abs().max() > 1e-5, f"tensor {index}"
            kept.copy_(before)


def test_sounds_of_a_batch_do_not_touch_each_other(code2wav: Any) -> None:
    """Three streams that continue at different frames give the same audio in one forward pass as separately."""
    decoder, lengths = ChunkDecoder(code2wav), (3, 40, 17)
    states = decoder.layout.zeros(3, decoder.device)
    alone: list[torch.Tensor] = []
    codes = [draw(code2wav, length + 2, seed=length) for length in lengths]
    with torch.inference_mode():
        for row, (length, own) in enumerate(zip(lengths, codes, strict=True)):
            place = torch.tensor([row])
            _, behind = decoder.advance(own[..., :length], [0], states.take(place))
            states.put(place, behind)
            alone.append(decoder.advance(own[..., length:], [length], behind)[0])
        together, _ = decoder.advance(torch.cat([own[..., -2:] for own in codes]), list(lengths), states)
    torch.testing.assert_close(together, torch.cat(alone), atol=TOLERANCE, rtol=0)


def test_the_state_is_bounded_and_as_large_as_said(code2wav: Any) -> None:
    """The state has as many values as its layout reports, however many frames it has seen."""
    decoder = ChunkDecoder(code2wav)
    with torch.inference_mode():
        _, states = decoder.advance(draw(code2wav, 50), [0], decoder.layout.zeros(1, decoder.device))
    assert sum(tensor.numel() for tensor in (states.attention, *states.columns)) == decoder.layout.numbers


def test_rows_are_lent_and_given_back(code2wav: Any) -> None:
    """Each stream has a row of the pool until it is dropped."""
    pool = StreamPool(ChunkDecoder(code2wav).layout, torch.device("cpu"), maximum_streams=9)
    names: list[str | None] = [f"sound-{index}" for index in range(9)]
    states = pool.read(names)
    for row in range(9):
        states.attention[row] = row
    pool.write(names, [4] * 9, states)
    assert (len(pool), pool.rows) == (9, 16)
    pool.check("sound-3", 4)
    with pytest.raises(ModelExecutionError, match="begins at frame 5, but its stream has 4"):
        pool.check("sound-3", 5)
    with pytest.raises(ModelExecutionError, match="9 audio streams are open"):
        pool.check("one more", 0)
    pool.drop("sound-3")
    pool.drop("sound-3")
    with pytest.raises(ModelExecutionError, match="its stream has 0"):
        pool.check("sound-3", 4)
    pool.check("one more", 0)
    again = pool.read(["sound-8", None, "one more"])
    assert [float(row.max()) for row in again.attention] == [8, 0, 0]
    for turn in range(100):
        pool.write([f"later-{turn}"], [1], pool.read([None]))
        pool.drop(f"later-{turn}")
    assert pool.rows == 16


def test_a_step_for_which_there_is_no_memory_advances_no_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ninth stream needs more rows. Without memory for them, the first eight can run their step again."""
    cpu = torch.device("cpu")
    layout = StateLayout((1, 2, 1, 3, 4), ((2, 2),))
    pool = StreamPool(layout, cpu)
    old = [f"sound-{index}" for index in range(8)]
    pool.write(old, [5] * 8, layout.zeros(8, cpu))

    def grow(states: States, rows: int) -> States:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as full:
        full.setattr(States, "grow", grow)
        with pytest.raises(torch.OutOfMemoryError):
            pool.write([*old, "new"], [6] * 8 + [1], layout.zeros(9, cpu))
    for name, frames in {**dict.fromkeys(old, 5), "new": 0}.items():
        pool.check(name, frames)
    pool.write([*old, "new"], [6] * 8 + [1], layout.zeros(9, cpu))
    assert (len(pool), pool.rows) == (9, 16)
