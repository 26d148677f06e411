"""Chunk by chunk, code2wav gives as many samples as transformers' code2wav in one pass, equal within 1e-5."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_stage.models.qwen3_omni.checkpoint import count_lookahead
from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.tiny import weights
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape, config_dict

TOLERANCE = 1e-5
FRAME, LOOKAHEAD = 1920, 555


@pytest.fixture(scope="module", params=["small", pytest.param("wide", marks=pytest.mark.full)])
def code2wav(request: pytest.FixtureRequest, make_tiny_checkpoint: Callable[..., Path]) -> Any:
    checkpoint = make_tiny_checkpoint(0, request.param, "qwen3_omni")
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).code2wav.eval()


def draw(code2wav: Any, frames: int, seed: int = 0, audios: int = 1) -> torch.Tensor:
    """Returns random codes: int64 [sounds, groups, frames]."""
    generator = torch.Generator().manual_seed(seed)
    config = code2wav.config
    return torch.randint(config.codebook_size, (audios, config.num_quantizers, frames), generator=generator)


@torch.inference_mode()
def run(code2wav: Any, codes: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Returns the audio of each chunk of `size` frames."""
    decoder = ChunkDecoder(code2wav)
    states, chunks = decoder.layout.zeros(codes.shape[0], decoder.device), []
    for begin in range(0, codes.shape[2], size):
        places = torch.full((codes.shape[0],), begin)
        audio, states = decoder.advance(codes[:, :, begin : begin + size], places, states)
        chunks.append(audio if begin else audio[:, decoder.lookahead :])
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
    """Zeroing any part of the state changes the audio. Otherwise the comparison could not notice a lost state."""
    codes = draw(code2wav, 8, seed=3)
    decoder = ChunkDecoder(code2wav)
    begin, place = torch.tensor([[0], [6]])
    with torch.inference_mode():
        _, states = decoder.advance(codes[..., :6], begin, decoder.layout.zeros(1, decoder.device))
        expected, _ = decoder.advance(codes[..., 6:], place, states)
        attention, columns = decoder.layout.split(states)
        for index, kept in enumerate((attention, *columns)):
            if not kept.numel():
                continue
            before = kept.clone()
            kept.zero_()
            audio, _ = decoder.advance(codes[..., 6:], place, states)
            assert (audio - expected).abs().max() > 1e-5, f"part {index}"
            kept.copy_(before)


def test_audio_of_a_batch_is_independent(code2wav: Any) -> None:
    """Streams at different frames, one of which begins, give the same audio in one forward as separately."""
    decoder, lengths = ChunkDecoder(code2wav), (3, 0, 40, 17)
    states = decoder.layout.zeros(4, decoder.device)
    alone: list[torch.Tensor] = []
    codes = [draw(code2wav, length + 2, seed=length) for length in lengths]
    with torch.inference_mode():
        for row, (length, own) in enumerate(zip(lengths, codes, strict=True)):
            begin, place = torch.tensor([[0], [length]])
            if length:
                states[row] = decoder.advance(own[..., :length], begin, states[row : row + 1])[1][0]
            alone.append(decoder.advance(own[..., length:], place, states[row : row + 1])[0])
        together, _ = decoder.advance(torch.cat([own[..., -2:] for own in codes]), torch.tensor(lengths), states)
    torch.testing.assert_close(together, torch.cat(alone), atol=TOLERANCE, rtol=0)
    assert not together[1, :LOOKAHEAD].any(), "samples before the start are silent"
    assert together[0, :LOOKAHEAD].any()


def test_the_state_is_bounded_and_as_large_as_said(code2wav: Any) -> None:
    """Every value of a row belongs to a layer: advancing writes all of them, however many frames there were."""
    decoder = ChunkDecoder(code2wav)
    with torch.inference_mode():
        blank = torch.full((1, decoder.layout.numbers), torch.nan)
        _, states = decoder.advance(draw(code2wav, 80), torch.tensor([0]), torch.zeros_like(blank))
    assert states.shape == blank.shape
    attention, columns = decoder.layout.split(states)
    assert sum(tensor.numel() for tensor in (attention, *columns)) == decoder.layout.numbers
    assert states.isfinite().all()


SHAPES: dict[str, dict[str, Any]] = {
    "other rates": {"upsample_rates": [4, 3], "upsampling_ratios": [3]},
    "one rate": {"upsample_rates": [7], "upsampling_ratios": [2, 1]},
    "a lookahead longer than a frame": {"upsample_rates": [4, 3], "upsampling_ratios": []},
    "rates of one": {"upsample_rates": [1, 1], "upsampling_ratios": [1]},
    "widths and heads": {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "decoder_dim": 96},
    "groups and codes": {"num_quantizers": 7, "codebook_size": 48},
    "a window of one frame": {"sliding_window": 1, "num_hidden_layers": 3},
    "other settings": {"rope_theta": 500.0, "attention_bias": True, "rms_norm_eps": 1e-3, "intermediate_size": 80},
}
FEW: dict[str, Any] = {"upsample_rates": [3, 2], "upsampling_ratios": [2], "sliding_window": 4}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_the_configuration_may_differ(shape: str) -> None:
    """The audio is transformers', and begins with the frames that SpeechFacts.first_frames states."""
    values = config_dict(TinyShape(), {"system": 1, "user": 2, "assistant": 3})["code2wav_config"]
    values |= FEW | SHAPES[shape]
    config = Qwen3OmniMoeConfig(code2wav_config=values).code2wav_config
    holder = torch.nn.Module()
    holder.code2wav = model = Qwen3OmniMoeCode2Wav._from_config(config).float().eval()
    weights.fill_weights(holder, 0)
    weights.make_audible(model, 0)
    samples = math.prod((*config.upsample_rates, *config.upsampling_ratios))
    first = count_lookahead(config.upsample_rates) // samples + 1
    codes = draw(model, first + 14)
    with torch.inference_mode():
        expected = model(codes)[:, 0]
    for size in (first, 5):
        torch.testing.assert_close(torch.cat(run(model, codes, size), dim=1), expected, atol=TOLERANCE, rtol=0)
    assert expected.abs().max() > 0.05, "the audio must not be nearly silent, or the comparison is meaningless"
