"""Makes transformers' token2wav with random weights, and the stage's own computation with the same weights.

On a GPU it has the published shapes; on a CPU, small shapes of the same structure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import Speech
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance

PUBLISHED = Path(__file__).parents[3] / "tests" / "data" / "published" / "qwen25_omni_7b.config.json"
STEPS, CPU_STEPS = 10, 3
"""Steps of the solver: as many as the release uses, and on a CPU only a few."""


@dataclass(slots=True)
class Wave:
    """transformers' token2wav model, and the stage's Speech with the same weights."""

    model: Any
    voices: dict[str, Any]
    codes: int
    """Size of the codec vocabulary."""
    speech: Speech = field(init=False)
    """The stage's computation, without CUDA graphs."""

    def __post_init__(self) -> None:
        self.speech = Speech(self.model, self.voices, use_graphs=False)

    @property
    def dit(self) -> Any:
        """The diffusion transformer of transformers' model."""
        return self.model.code2wav_dit_model

    @torch.inference_mode()
    def speak(self, *utterances: Utterance) -> list[torch.Tensor]:
        """Returns the audio of each utterance, float32 [samples] on the device, computed in one batch."""
        return self.speech.speak(utterances)

    @torch.inference_mode()
    def speak_densely(self, utterance: Utterance) -> torch.Tensor:
        """Returns transformers' own audio of the same codes from the same noise, float32 [samples] on the device."""
        voice, device = self.voices[utterance.voice], self.dit.proj_out.weight.device
        sampled = torch.randn
        pack, _, start = self.speech.prepare([utterance])
        noise = pack.split(start)[0][None]

        def same_noise(*_: Any, **__: Any) -> torch.Tensor:
            return noise.clone()

        try:
            # transformers draws its start noise on the device; our stages draw theirs on the CPU.
            torch.randn = same_noise
            audio: torch.Tensor = self.model(
                utterance.codes[None].to(device),
                conditioning=voice.speaker.to(device),
                reference_mel=voice.reference_mel.to(device),
                num_steps=utterance.steps,
                guidance_scale=utterance.guidance,
            )
        finally:
            torch.randn = sampled
        # transformers' vocoder returns its result on the CPU.
        return audio.reshape(-1).to(device)

    def utterance(self, codes: int, seed: int = 0, steps: int = STEPS) -> Utterance:
        """Returns an utterance of random codes."""
        drawn = torch.randint(self.codes, (codes,), generator=torch.Generator().manual_seed(100 + seed))
        return Utterance(codes=drawn, voice="a", seed=seed, steps=steps, guidance=0.5)


@cache
def load(device: str) -> Wave:
    """Returns a model with the published shapes on a GPU, and with small shapes on a CPU.

    Its random weights carry a signal through every layer.
    """
    from support.models.wave_models import make_wave_model, make_wave_voices, strength

    if device == "cuda":
        model = make_published("cuda")
        generator = torch.Generator("cuda").manual_seed(0)
        for name, parameter in model.named_parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
            parameter.data.normal_(0, strength(name) * fan_in**-0.5, generator=generator)
    else:
        # Few layers, because a check must take only seconds on a CPU. The tests have the published depth.
        model = make_wave_model("small blocks")
    return Wave(model, make_wave_voices(model, "a"), model.config.dit_config.num_embeds)


def make_published(device: str) -> Any:
    """Returns transformers' token2wav with the release's shapes, in float32. The caller sets its weights."""
    from transformers import Qwen2_5OmniToken2WavConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

    config = json.loads(PUBLISHED.read_text(encoding="utf-8"))["token2wav_config"]
    with torch.device(device):
        return Qwen2_5OmniToken2WavModel(Qwen2_5OmniToken2WavConfig(**config)).float().eval().requires_grad_(False)


@contextmanager
def full_precision() -> Iterator[None]:
    """Turns off TF32, which cuDNN uses by default. Its rounding would hide the differences that are compared."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
