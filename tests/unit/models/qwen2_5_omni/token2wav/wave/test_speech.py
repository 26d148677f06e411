"""Utterances that are computed together get the audio that transformers makes of each, whatever the others are.

They share one loop of the solver, and utterances of equal length share a forward pass of the vocoder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from omni_stage.models.qwen2_5_omni.checkpoint import Voice
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import Speech
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance
from support.models.wave_models import ODD_SHAPE, WAITS, Operators, make_utterance, make_wave_model, make_wave_voices

TOLERANCE = 1e-5
SHAPE = "small blocks"
# Whole and partial blocks, one length twice, both voices, different guidance: one loop of the solver computes them all.
MIXED = [
    make_utterance(12, seed=1, voice="a"),
    make_utterance(13, seed=2, voice="b", guidance=2.0),
    make_utterance(1, seed=3, voice="a"),
    make_utterance(12, seed=4, voice="b"),
    make_utterance(30, seed=5, voice="a", first_code=8),
]


class Kit:
    """A model, its voices, and how often the transformer, the speaker encoder and the vocoder ran."""

    def __init__(self, shape: str = SHAPE, **voices: Voice) -> None:
        self.model = make_wave_model(shape)
        self.voices = make_wave_voices(self.model, "a", "b") | voices
        self.speech = Speech(self.model, self.voices, use_graphs=True)
        self.calls: Counter[str] = Counter()
        dit, vocoder = self.model.code2wav_dit_model, self.model.code2wav_bigvgan_model
        self._count("evaluations", dit.transformer_blocks[0].ff)
        self._count("speakers", dit.input_embed.spk_encoder)
        self._count("vocoders", vocoder.conv_pre)
        self._count("time points", dit.time_embed)

    def _count(self, name: str, module: nn.Module) -> None:
        module.register_forward_hook(lambda *_: self.calls.update([name]))

    def speak(self, *utterances: Utterance) -> list[torch.Tensor]:
        with torch.inference_mode():
            return self.speech.speak(utterances)

    def mel(self, utterance: Utterance) -> torch.Tensor:
        """Returns the mel spectrogram that transformers' sample() makes: float32 [1, bins, frames]."""
        voice = self.voices[utterance.voice]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(utterance.seed)
            return self.model.code2wav_dit_model.sample(
                voice.speaker,
                voice.reference_mel,
                utterance.codes[None],
                num_steps=utterance.steps,
                guidance_scale=utterance.guidance,
            )


@pytest.mark.parametrize(
    "utterance",
    [
        make_utterance(12, seed=7),
        make_utterance(31, seed=2**62, voice="b"),
        make_utterance(5, guidance=0.0),
        make_utterance(9, steps=4, guidance=1.5),
    ],
    ids=["whole blocks", "a part of a block", "no guidance", "few steps"],
)
@pytest.mark.parametrize(("shape", "code_samples"), [(SHAPE, 480), (ODD_SHAPE, 36)])
def test_mel_and_audio_are_transformers_own(
    utterance: Utterance, shape: str, code_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(shape)
    mels: list[torch.Tensor] = []
    vocode = kit.speech._vocode
    monkeypatch.setattr(kit.speech, "_vocode", lambda mel: mels.append(mel) or vocode(mel))
    (audio,) = kit.speak(utterance)
    expected = kit.mel(utterance)
    torch.testing.assert_close(mels[0], expected, atol=TOLERANCE * float(expected.abs().max()), rtol=0)
    assert audio.shape == (utterance.codes.numel() * code_samples,)
    assert kit.speech.audio_shape.count(utterance.codes.numel()) == audio.numel()
    torch.testing.assert_close(audio, kit.model.code2wav_bigvgan_model(expected), atol=TOLERANCE, rtol=0)


def test_together_as_alone_in_one_loop_and_a_vocoder_each_length() -> None:
    """Utterances give the same audio together as alone. The vocoder runs once for each length."""
    kit = Kit()
    alone = [kit.speak(utterance)[0] for utterance in MIXED]
    kit.calls.clear()
    together = kit.speak(*MIXED)  # the time points are known by now
    for utterance, first, second in zip(MIXED, alone, together, strict=True):
        assert first.std() > 1e-3
        torch.testing.assert_close(second, first, atol=TOLERANCE, rtol=0, msg=lambda text, u=utterance: f"{u}: {text}")
    assert kit.calls == {"evaluations": 36, "vocoders": 4}, (
        "nine steps of four evaluations; two utterances have 12 codes"
    )


def test_from_codes_to_audio_no_value_is_read_back() -> None:
    """No operator between codes and audio waits for the device."""
    kit = Kit()
    with torch.no_grad(), Operators() as operators:
        kit.speech.speak(MIXED[:2])
    assert len(operators.names) > 30
    assert not operators.names & WAITS


def test_a_voice_is_encoded_once() -> None:
    kit = Kit()
    for _ in range(2):
        kit.speak(*MIXED)
    assert kit.calls["speakers"] == 2
    kit = Kit()
    with torch.inference_mode():
        kit.speech.warm_up()
    assert kit.calls == {"speakers": 2}, "without a GPU, warm-up only encodes the voices"
    kit.speak(MIXED[0])
    assert kit.calls["speakers"] == 2


def test_time_points_are_embedded_once_for_all_utterances() -> None:
    """Each interval's time points are embedded at its first use, and again only if a request has other steps."""
    kit = Kit()
    for _ in range(2):
        kit.speak(MIXED[0])
        kit.speak(*MIXED)
        assert kit.calls["time points"] == 9
    kit.speak(replace(MIXED[0], steps=4))
    assert kit.calls["time points"] == 9 + 3


def test_what_breaks_one_utterance_leaves_the_others_as_they_are() -> None:
    """An utterance whose voice is not finite becomes NaN, which a clamp must not turn into silence.

    The NaN does not spread through attention to the other utterances.
    """
    kit = Kit()
    good = kit.speak(MIXED[0], MIXED[1])
    for bad in (torch.nan, torch.inf, -torch.inf):
        voice = kit.voices["a"]
        broken = Kit(bad=replace(voice, speaker=torch.full_like(voice.speaker, bad)))
        first, poisoned, second = broken.speak(MIXED[0], replace(MIXED[3], voice="bad"), MIXED[1])
        assert poisoned.isnan().all()
        torch.testing.assert_close([first, second], good, atol=TOLERANCE, rtol=0)
