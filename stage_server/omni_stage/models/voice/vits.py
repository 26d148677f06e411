"""VITS in torch: transformers' encoder, durations and flow, and a HiFi-GAN of our own. For many utterances at once.

transformers' VitsModel draws its noise from the global generator, gives padded utterances other audio than they have
alone, and lacks the small residual blocks of Piper's voices (HiFi-GAN's "ResBlock2"). Here each utterance's noise
comes from its own seed, and padding is set to zero before every layer that looks around a position. So the audio does
not depend on what else is in the batch.
Source: transformers 5.19, models/vits/modeling_vits.py; HiFi-GAN (Kong and others, 2020).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from transformers import VitsConfig
from transformers.models.vits.modeling_vits import (
    HifiGanResidualBlock,
    VitsDurationPredictor,
    VitsResidualCouplingBlock,
    VitsStochasticDurationPredictor,
    VitsTextEncoder,
)

from omni_stage.errors import ModelExecutionError
from omni_stage.models.shared.graphs import Capture, CudaCapture, GraphedFunction, next_size

logger = logging.getLogger(__name__)

MAX_ID_S: Final = 1.2
"""Seconds of one id, at the voice's own speed, beyond which a duration is cut. Only broken weights give more."""
MAX_UTTERANCE_S: Final = 190.0
"""Seconds of an utterance beyond which it fails."""
CPU_FRAMES: Final = 256
"""Frames, padding included, of utterances that a CPU decodes together. Longer utterances are decoded one by one."""
GPU_FRAMES: Final = 8192
"""The same on a GPU."""
GRAPH_FRAMES: Final = (64, 128, 192, 256, 384, 512, 768)
"""Numbers of frames for which the decoder is captured; 768 are about 9 s. Utterances are padded to the next."""
GRAPH_BATCHES: Final = (1, 4)
"""Numbers of utterances for which the decoder is captured."""
_LAST_SLOPE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Utterance:
    """What to say, and how."""

    ids: Sequence[int]
    speaker: int
    seed: int
    noise: float
    noise_of_durations: float
    length: float


@dataclass(frozen=True, slots=True)
class Speech:
    """An utterance that was spoken."""

    audio: torch.Tensor
    """float32 [samples], on the device."""
    frames: torch.Tensor
    """int64 [ids], on the device: the length of each id. A frame has `Speaker.samples_per_frame` samples."""


class SmallResidualBlock(nn.Module):
    """HiFi-GAN's ResBlock2: one convolution for each dilation."""

    def __init__(self, channels: int, kernel_size: int, dilations: Sequence[int], slope: float) -> None:
        super().__init__()
        self._slope = slope
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel_size, dilation=step, padding=(kernel_size - 1) * step // 2)
            for step in dilations
        )

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns [N, channels, T]. `mask` [N, 1, T] is 0 at padding; None without padding."""
        for convolution in self.convs:
            hidden = hidden + convolution(_masked(functional.leaky_relu(hidden, self._slope), mask))
        return hidden


class LargeResidualBlock(HifiGanResidualBlock):
    """HiFi-GAN's ResBlock1, with a mask."""

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Returns [N, channels, T]. `mask` [N, 1, T] is 0 at padding; None without padding."""
        slope = self.leaky_relu_slope
        for first, second in zip(self.convs1, self.convs2, strict=True):
            inner = first(_masked(functional.leaky_relu(hidden, slope), mask))
            hidden = hidden + second(_masked(functional.leaky_relu(inner, slope), mask))
        return hidden


class Vocoder(nn.Module):
    """HiFi-GAN's generator, with the names of transformers' VitsHifiGan."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._slope = config.leaky_relu_slope
        width = config.upsample_initial_channel
        self._rates = tuple(config.upsample_rates)
        self.conv_pre = nn.Conv1d(config.flow_size, width, 7, padding=3)
        self.upsampler = nn.ModuleList(
            nn.ConvTranspose1d(width >> stage, width >> (stage + 1), kernel, stride=rate, padding=(kernel - rate) // 2)
            for stage, (rate, kernel) in enumerate(zip(self._rates, config.upsample_kernel_sizes, strict=True))
        )
        self._per_stage = len(config.resblock_kernel_sizes)
        block = SmallResidualBlock if getattr(config, "resblock", "1") == "2" else LargeResidualBlock
        self.resblocks = nn.ModuleList(
            block(width >> (stage + 1), kernel, dilations, self._slope)
            for stage in range(len(self._rates))
            for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = nn.Conv1d(width >> len(self._rates), 1, 7, padding=3, bias=False)
        if config.speaker_embedding_size:
            self.cond = nn.Conv1d(config.speaker_embedding_size, width, 1)

    def forward(self, latents: torch.Tensor, speaker: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns audio [N, samples] from latents [N, flow size, T]. `mask` [N, 1, T] is 0 at padding, or None."""
        hidden = self.conv_pre(_masked(latents, mask))
        if speaker is not None:
            hidden = hidden + self.cond(speaker)
        for stage, (rate, upsample) in enumerate(zip(self._rates, self.upsampler, strict=True)):
            hidden = upsample(_masked(functional.leaky_relu(hidden, self._slope), mask))
            mask = None if mask is None else mask.repeat_interleave(rate, dim=2)
            blocks = self.resblocks[stage * self._per_stage : (stage + 1) * self._per_stage]
            total = blocks[0](hidden, mask)
            for block in blocks[1:]:
                total = total + block(hidden, mask)
            hidden = total / self._per_stage
        return torch.tanh(self.conv_post(_masked(functional.leaky_relu(hidden, _LAST_SLOPE), mask))).squeeze(1)


class Vits(nn.Module):
    """The parts of VITS that speaking needs, with transformers' names. Training's parts are left out."""

    def __init__(self, config: VitsConfig) -> None:
        super().__init__()
        self.text_encoder = VitsTextEncoder(config)
        self.flow = VitsResidualCouplingBlock(config)
        self.decoder = Vocoder(config)
        self.duration_predictor = _make_durations(config)
        if config.num_speakers > 1:
            self.embed_speaker = nn.Embedding(config.num_speakers, config.speaker_embedding_size)
        for module in list(self.modules()):
            # Weight normalization is for training. Its two tensors are folded into one when they are loaded.
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight")


def _make_durations(config: VitsConfig) -> nn.Module:
    if not config.use_stochastic_duration_prediction:
        return VitsDurationPredictor(config)
    predictor = VitsStochasticDurationPredictor(config)
    for name in ("post_conv_pre", "post_conv_proj", "post_conv_dds", "post_flows"):
        delattr(predictor, name)
    # transformers skips this flow when it speaks, and exporters leave it out.
    predictor.flows[1] = nn.Identity()
    return predictor


class Speaker:
    """Turns utterances into audio with a loaded model."""

    def __init__(self, model: Vits, config: VitsConfig, *, use_graphs: bool) -> None:
        self._model = model.eval()
        self._config = config
        self._device = model.text_encoder.embed_tokens.weight.device
        self.samples_per_frame = int(torch.tensor(config.upsample_rates).prod())
        frames_per_s = config.sampling_rate / self.samples_per_frame
        self._most_per_id = math.ceil(MAX_ID_S * frames_per_s)
        self._most = math.ceil(MAX_UTTERANCE_S * frames_per_s)
        self._frames = GPU_FRAMES if self._device.type == "cuda" else CPU_FRAMES
        self.use_capture(CudaCapture(self._device) if use_graphs and self._device.type == "cuda" else None)

    def use_capture(self, capture: Capture | None) -> None:
        """Use `capture` from the next warm_up on. With None, everything runs uncaptured."""
        self._has_graphs = capture is not None
        self._graphed = GraphedFunction(self._decode, capture)

    def warm_up(self) -> int:
        """Capture the decoder, the largest sizes first, so that smaller ones reuse their memory. Returns how many."""
        captured = 0
        if self._has_graphs:
            for batch in reversed(GRAPH_BATCHES):
                for frames in reversed(GRAPH_FRAMES):
                    captured += self._graphed.warm_up(*self._blank(batch, frames))
            logger.info("voice: %d CUDA graphs captured", captured)
        return captured

    def speak(self, utterances: Sequence[Utterance]) -> list[Speech | ModelExecutionError]:
        """Returns each utterance's speech, or an error in its place."""
        predicted = self._predict(utterances)
        # Until an utterance is decoded, its latents stand in for the audio.
        results: list[Speech | ModelExecutionError] = [
            item if isinstance(item, ModelExecutionError) else Speech(*item) for item in predicted
        ]
        frames_of = {index: item.frames for index, item in enumerate(results) if isinstance(item, Speech)}
        latents = {index: item.audio for index, item in enumerate(results) if isinstance(item, Speech)}
        for group in self._group(latents):
            lengths = [latents[index].shape[1] for index in group]
            padded, mask = self._pad([latents[index] for index in group])
            speaker = self._embed([utterances[index].speaker for index in group], padded.shape[0])
            given = (padded, mask) if speaker is None else (padded, mask, speaker)
            is_whole = not self._has_graphs and len(set(lengths)) == 1
            audio = self._decode(padded, None, speaker) if is_whole else self._graphed(*given)
            for row, (index, frames) in enumerate(zip(group, lengths, strict=True)):
                # Clone, because a slice would keep the memory of the whole batch.
                results[index] = Speech(audio[row, : frames * self.samples_per_frame].clone(), frames_of[index])
        return results

    def _predict(
        self, utterances: Sequence[Utterance]
    ) -> list[tuple[torch.Tensor, torch.Tensor] | ModelExecutionError]:
        """Returns the latents of each utterance before the flow, [flow size, frames], and the frames of each id, or an
        error in their place."""
        lengths = torch.tensor([len(item.ids) for item in utterances])
        ids = nn.utils.rnn.pad_sequence([torch.tensor(item.ids) for item in utterances], batch_first=True)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).to(self._device)
        encoded = self._model.text_encoder(
            input_ids=ids.to(self._device),
            padding_mask=mask[..., None].float(),
            attention_mask=mask.long() if len(set(lengths.tolist())) > 1 else None,
        )
        speaker = self._embed([item.speaker for item in utterances], len(utterances))
        generators = [torch.Generator().manual_seed(item.seed) for item in utterances]
        durations = self._durations(encoded.last_hidden_state, mask, speaker, utterances, generators)
        return [
            self._sample(means[:count], variances[:count], times[:count], item, generator)
            for means, variances, times, count, item, generator in zip(
                encoded.prior_means,
                encoded.prior_log_variances,
                durations,
                lengths.tolist(),
                utterances,
                generators,
                strict=True,
            )
        ]

    def _durations(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor,
        speaker: torch.Tensor | None,
        utterances: Sequence[Utterance],
        generators: Sequence[torch.Generator],
    ) -> torch.Tensor:
        """Returns the number of frames of each id, int64 [N, ids]; 0 at padding."""
        inputs, padding = hidden.transpose(1, 2), mask[:, None].float()
        predictor = self._model.duration_predictor
        if isinstance(predictor, VitsDurationPredictor):
            logs = predictor(inputs, padding, speaker)
        else:
            noise = torch.zeros(len(utterances), 2, mask.shape[1])
            for row, (item, generator) in enumerate(zip(utterances, generators, strict=True)):
                noise[row, :, : len(item.ids)] = (
                    torch.randn(2, len(item.ids), generator=generator) * item.noise_of_durations
                )
            logs = _sample_durations(predictor, inputs, padding, speaker, noise.to(self._device))
        factors = torch.tensor([item.length for item in utterances], device=self._device)
        own = torch.exp(logs[:, 0]).nan_to_num(self._most, self._most).clamp(max=self._most_per_id)
        return torch.ceil(own * padding[:, 0] * factors[:, None]).long()

    def _sample(
        self,
        means: torch.Tensor,
        log_variances: torch.Tensor,
        frames: torch.Tensor,
        item: Utterance,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor] | ModelExecutionError:
        """Returns latents [flow size, frames], at least one frame, and the frames of each id; an error if there are too
        many."""
        total = int(frames.sum())
        if total > self._most:
            return ModelExecutionError(
                f"the voice gave {total} frames for {len(item.ids)} symbols; at most {self._most} are allowed, so its "
                "weights are broken"
            )
        if total == 0:
            frames = functional.one_hot(torch.zeros_like(frames[0]), len(frames))
        means = means.repeat_interleave(frames, dim=0).T
        deviations = torch.exp(log_variances).repeat_interleave(frames, dim=0).T
        noise = torch.randn(means.shape, generator=generator).to(self._device)
        return means + noise * deviations * item.noise, frames

    def _group(self, latents: Mapping[int, torch.Tensor]) -> Iterator[list[int]]:
        """Yields utterances of similar lengths to decode together."""
        group: list[int] = []
        for index in sorted(latents, key=lambda index: -latents[index].shape[1]):
            if group and (len(group) + 1) * latents[group[0]].shape[1] > self._frames:
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    def _pad(self, latents: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns latents [N, flow size, T] and their mask [N, 1, T], padded to a captured size if there is one."""
        count, frames = len(latents), max(item.shape[1] for item in latents)
        if self._has_graphs and frames <= GRAPH_FRAMES[-1] and count <= GRAPH_BATCHES[-1]:
            count, frames = next_size(count, GRAPH_BATCHES), next_size(frames, GRAPH_FRAMES)
        padded, mask = self._blank(count, frames)[:2]
        for row, item in enumerate(latents):
            padded[row, :, : item.shape[1]] = item
            mask[row, :, item.shape[1] :] = 0
        return padded, mask

    def _blank(self, count: int, frames: int) -> tuple[torch.Tensor, ...]:
        padded = torch.zeros(count, self._config.flow_size, frames, device=self._device)
        mask = torch.ones(count, 1, frames, device=self._device)
        speaker = self._embed([0] * count, count)
        return (padded, mask) if speaker is None else (padded, mask, speaker)

    def _embed(self, speakers: Sequence[int], count: int) -> torch.Tensor | None:
        """Returns the speakers' embeddings [count, size, 1]; None for a model with one speaker."""
        if self._config.num_speakers < 2:
            return None
        padded = [*speakers, *[0] * (count - len(speakers))]
        embedded: torch.Tensor = self._model.embed_speaker(torch.tensor(padded, device=self._device))
        return embedded[..., None]

    def _decode(
        self, latents: torch.Tensor, mask: torch.Tensor | None, speaker: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns audio [N, samples] of latents before the flow."""
        whole = torch.ones_like(latents[:, :1]) if mask is None else mask
        flowed = self._model.flow(latents, whole, speaker, reverse=True)
        audio: torch.Tensor = self._model.decoder(flowed, speaker, mask)
        return audio


def _sample_durations(
    predictor: VitsStochasticDurationPredictor,
    inputs: torch.Tensor,
    padding: torch.Tensor,
    speaker: torch.Tensor | None,
    noise: torch.Tensor,
) -> torch.Tensor:
    """Returns log durations [N, 1, ids]: transformers' reverse pass, with the noise given."""
    hidden = predictor.conv_pre(inputs)
    if speaker is not None:
        hidden = hidden + predictor.cond(speaker)
    hidden = predictor.conv_proj(predictor.conv_dds(hidden, padding)) * padding
    flows = list(reversed(predictor.flows))
    latents = noise
    for flow in [*flows[:-2], flows[-1]]:
        latents = torch.flip(latents, [1])
        latents, _ = flow(latents, padding, global_conditioning=hidden, reverse=True)
    return latents[:, :1]


def _masked(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return tensor if mask is None else tensor * mask
