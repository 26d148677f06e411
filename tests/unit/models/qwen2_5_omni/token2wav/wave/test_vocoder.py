"""The vocoder gives transformers' samples, and NaN instead of silence for a mel spectrogram that is not finite."""

from __future__ import annotations

import pytest
import torch

from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import normalize, vocode
from support.models.wave_models import Operators, make_wave_model


def make_mel(count: int, frames: int) -> torch.Tensor:
    return 3 * torch.randn(count, 16, frames, generator=torch.Generator().manual_seed(frames)) - 4


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("frames", [2, 24, 31])
def test_samples_are_transformers_own(count: int, frames: int) -> None:
    vocoder, mel = make_wave_model().code2wav_bigvgan_model, make_mel(count, frames)
    with torch.no_grad():
        expected = vocoder(mel).reshape(count, -1)
        with Operators() as operators:
            ours = vocode(vocoder, mel)
        assert torch.allclose(normalize(mel), vocoder.process_mel_spectrogram(mel), atol=1e-6)
    assert ours.shape == (count, frames * 240)
    assert expected.std() > 0.01
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    assert not any("_local_scalar_dense" in name or "_to_copy" in name for name in operators.names)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_mel_that_is_not_finite_is_no_audio(bad: float) -> None:
    vocoder, mel = make_wave_model().code2wav_bigvgan_model, make_mel(2, 24)
    with torch.inference_mode():
        good = vocode(vocoder, mel)
        mel[1, 3, 20] = bad
        audio = vocode(vocoder, mel)
    assert audio[1].isnan().all()
    torch.testing.assert_close(audio[0], good[0], atol=1e-6, rtol=0)
