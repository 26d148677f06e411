"""vLLM model class of token2wav: transformers' diffusion transformer and vocoder under our own solver.

Our solver, because transformers' `sample()` draws its noise from the global generator, so that concurrent requests
would change each other's sound; here each request's noise comes from its own seed. Requests of equal length, voice and
settings share one batch: the transformer has no padding mask. Contract: vllm_adapter, DiffusionModel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_stage.errors import InvalidRequestError
from omni_stage.models.qwen2_5_omni.checkpoint import Voice, read_voices
from omni_stage.payloads import AdditionalInformationPayload

_SWAY = -1.0
"""Bends the time points towards the start; transformers' default."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One request, read from its payload."""

    codes: torch.Tensor
    """int64 [N] on the CPU."""
    voice: str
    seed: int
    steps: int
    """Time points of the solver."""
    guidance: float
    first_code: int = 0
    """Number of the first code in the whole utterance: says which of its noise belongs to these codes."""
    keep: tuple[int, int, int] | None = None
    """Codes to leave out at the beginning, codes to sound, samples behind them to give as a tail; None: all."""

    @property
    def batch_key(self) -> tuple[int, str, int, float]:
        """Utterances with equal keys can share a batch."""
        return (self.codes.shape[0], self.voice, self.steps, self.guidance)


class Token2WavModel(nn.Module, IsAttentionFree):
    """Qwen2.5-Omni's token2wav."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"thinker.": None, "talker.": None, "token2wav.": "token2wav."}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.token2wav = Qwen2_5OmniToken2WavModel._from_config(vllm_config.model_config.hf_config).float()
        self.pooler = IdentityPooler()
        self._voices = read_voices(vllm_config.model_config.model)

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """vLLM asks every model for this; a diffusion model has none."""
        raise NotImplementedError("token2wav has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """vLLM asks every model for this; a diffusion model has none."""
        raise NotImplementedError("token2wav is not autoregressive; use generate()")

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[AdditionalInformationPayload]
    ) -> list[torch.Tensor | dict[str, torch.Tensor] | Exception]:
        """One sound, float32 [samples] in [-1, 1] on the CPU, for each request, in order.

        A window's is {"output": what it sounds, "tail": the samples behind that}. An exception in its place fails that
        request alone. What a whole batch raises is raised.
        """
        results: dict[int, torch.Tensor | dict[str, torch.Tensor] | Exception] = {}
        batches: dict[Any, list[tuple[int, Utterance]]] = {}
        for index, request in enumerate(requests):
            try:
                utterance = self._read(request)
            except InvalidRequestError as error:
                results[index] = error
                continue
            batches.setdefault(utterance.batch_key, []).append((index, utterance))
        for batch in batches.values():
            sounds = self._speak([utterance for _, utterance in batch])
            for (index, utterance), sound in zip(batch, sounds, strict=True):
                results[index] = cut_window(sound, utterance)
        return [results[index] for index in range(len(requests))]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load token2wav out of a whole checkpoint."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded

    def _read(self, request: AdditionalInformationPayload) -> Utterance:
        voice = str(request.list("voice")[0])
        if voice not in self._voices:
            raise InvalidRequestError(f"voice: is none of {', '.join(self._voices)}", field="start.audio.voice")
        return Utterance(
            codes=request.tensor("codes"),
            voice=voice,
            seed=_number(request, "seed", int),
            steps=_number(request, "steps", int),
            guidance=_number(request, "guidance", float),
            first_code=_number(request, "first_code", int) if "first_code" in request else 0,
            keep=_keep(request) if "keep" in request else None,
        )

    def _speak(self, utterances: Sequence[Utterance]) -> list[torch.Tensor]:
        """Sounds of utterances with equal batch keys."""
        dit = self.token2wav.code2wav_dit_model
        device = dit.proj_out.weight.device
        voice: Voice = self._voices[utterances[0].voice]
        count, frames = len(utterances), utterances[0].codes.shape[0] * dit.repeats
        codes = torch.stack([utterance.codes for utterance in utterances]).to(device)
        speaker = voice.speaker.to(device)[:, None].expand(count, frames, -1)
        reference = voice.reference_mel.to(device).expand(count, -1, -1)
        noise = torch.cat(
            [
                make_noise(item.seed, frames, dit.mel_dim, first_frame=item.first_code * dit.repeats)
                for item in utterances
            ]
        ).to(device)
        guidance = utterances[0].guidance

        def velocity(time: torch.Tensor, mel: torch.Tensor) -> torch.Tensor:
            guided = guidance >= 1e-5
            output = dit(
                hidden_states=mel,
                speaker_embedding=speaker,
                condition_vector=reference,
                quantized_code=codes,
                time_step=time,
                apply_cfg=guided,
            )
            if not guided:
                return output
            with_condition, without = output.chunk(2)
            return with_condition + (with_condition - without) * guidance

        mel = integrate(velocity, noise, time_points(utterances[0].steps, device))
        sound = self.token2wav.code2wav_bigvgan_model(mel.permute(0, 2, 1)).float().reshape(count, -1)
        return [row.clone() for row in sound]


def make_noise(seed: int, frames: int, mel_bins: int, *, first_frame: int = 0) -> torch.Tensor:
    """float32 [1, frames, mel_bins] on the CPU: what torch.randn gives after torch.manual_seed(seed), from first_frame.

    Frame f is the same whatever frames are asked for, as long as frames x mel_bins are multiples of 16: torch draws
    normal numbers in groups of 16.
    """
    whole = torch.randn([1, first_frame + frames, mel_bins], generator=torch.Generator().manual_seed(seed))
    return whole[:, first_frame:]


def cut_window(sound: torch.Tensor, utterance: Utterance) -> torch.Tensor | dict[str, torch.Tensor]:
    """What of a sound [samples] is given: all of it, or a window's part and tail."""
    if utterance.keep is None:
        return sound
    skip, keep, tail = utterance.keep
    code_samples = sound.shape[0] // utterance.codes.shape[0]
    begin, until = skip * code_samples, (skip + keep) * code_samples
    # Clones: a slice would carry the whole sound to the front end.
    parts = {"output": sound[begin:until].clone()}
    if tail:
        parts["tail"] = sound[until : until + tail].clone()
    return parts


def time_points(count: int, device: torch.device) -> torch.Tensor:
    """float32 [count] from 0 to 1, denser at the start."""
    points = torch.linspace(0, 1, count, device=device, dtype=torch.float32)
    return points + _SWAY * (torch.cos(math.pi / 2 * points) - 1 + points)


def integrate(
    velocity: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], start: torch.Tensor, times: torch.Tensor
) -> torch.Tensor:
    """Follow the velocity from start through the time points: the classical 3/8 rule, fourth order."""
    value = start
    for begin, end in pairwise(times):
        step = end - begin
        k1 = velocity(begin, value)
        k2 = velocity(begin + step * (1 / 3), value + step * k1 * (1 / 3))
        k3 = velocity(begin + step * (2 / 3), value + step * (k2 - k1 * (1 / 3)))
        k4 = velocity(end, value + step * (k1 - k2 + k3))
        value = value + (k1 + 3 * (k2 + k3) + k4) * step / 8
    return value


def _number(request: AdditionalInformationPayload, name: str, kind: Callable[[Any], Any]) -> Any:
    values = request.list(name)
    if len(values) != 1 or isinstance(values[0], str) or values[0] is None:
        raise InvalidRequestError(f"{name}: must be one number", field=name)
    return kind(values[0])


def _keep(request: AdditionalInformationPayload) -> tuple[int, int, int]:
    values = request.list("keep")
    if len(values) != 3 or not all(isinstance(value, int) and value >= 0 for value in values):
        raise InvalidRequestError("keep: must be three integers of at least 0", field="keep")
    skip, keep, tail = values
    return int(skip or 0), int(keep or 0), int(tail or 0)
