"""vLLM model class of token2wav: transformers' diffusion transformer and vocoder, with our own forward (wave/).

The requests of a step that have the same number of solver steps share one solver loop, whatever their lengths, voices,
seeds and guidance; those of equal length share the vocoder's forward. Each request's audio is the same as if it ran
alone. Hook: OneShotModel.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.qwen2_5_omni.checkpoint import Voice, read_voices
from omni_stage.models.qwen2_5_omni.token2wav.wave.blocks import count_blocks, pack_blocks
from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import advance, make_noise, solve, time_points
from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import BlockTransformer, Conditions, VoiceRows
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance, cut_window, read_utterance
from omni_stage.models.qwen2_5_omni.token2wav.wave.vocoder import vocode
from omni_stage.models.qwen2_5_omni.token2wav.windows import window_blocks
from omni_stage.models.shared.graphs import Capture, CudaCapture, GraphedFunction, next_size
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings

logger = logging.getLogger(__name__)

IGNORED_TENSORS = ("token2wav.code2wav_dit_model.rotary_embed.inv_freq",)
"""In the published checkpoints, but not loaded: transformers 5 computes this table from the configuration."""

_SHARED_BLOCKS = (4, 8, 12, 16, 24, 32)
"""Blocks in packs of several windows."""
GRAPH_WINDOWS = (1, 2, 4)
"""Batch sizes of equally long windows for which the vocoder is captured."""


def graph_blocks(block_codes: int) -> tuple[int, ...]:
    """Returns the block counts of the packs that are captured, ascending: for one window alone, and for several.

    Other packs are padded to the next of these. Packs larger than the last run uncaptured: they have enough work to
    hide the kernel launches.
    """
    return tuple(sorted({*window_blocks(block_codes), *_SHARED_BLOCKS}))


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
        self._settings = DiffusionSettings.from_additional_config(vllm_config.additional_config)
        self._speech: Speech | None = None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuse: vLLM requires this method of every model, but a diffusion model has no token embeddings."""
        raise NotImplementedError("token2wav has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuse: vLLM requires this method of every model, but a diffusion model has no such step."""
        raise NotImplementedError("token2wav is not autoregressive; use generate()")

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[AdditionalInformationPayload]
    ) -> list[torch.Tensor | dict[str, torch.Tensor] | Exception]:
        """Returns one utterance's audio for each request, in order: float32 [samples] in [-1, 1], on the device.

        A window's result is {"output": its audio, "tail": the samples after it}. An exception in place of a result
        fails that request alone. An error of the whole batch is raised. Audio of a failed computation is NaN.
        """
        results: dict[int, torch.Tensor | dict[str, torch.Tensor] | Exception] = {}
        batches: dict[Any, list[tuple[int, Utterance]]] = {}
        for index, request in enumerate(requests):
            try:
                utterance = read_utterance(request, self._voices)
            except InvalidRequestError as error:
                results[index] = error
                continue
            batches.setdefault(utterance.batch_key, []).append((index, utterance))
        for batch in batches.values():
            speech = self._speak([utterance for _, utterance in batch])
            for (index, utterance), audio in zip(batch, speech, strict=True):
                try:
                    results[index] = cut_window(audio, utterance)
                except ModelExecutionError as error:
                    results[index] = error
        return [results[index] for index in range(len(requests))]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Encode the voices and, on CUDA, capture graphs for the sizes of windows. The weights must be loaded."""
        speech = self._speech = Speech(self.token2wav, self._voices, use_graphs=self._settings.cuda_graphs)
        speech.warm_up()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load token2wav from a whole checkpoint. Raises ConfigurationError."""
        mapper = self.hf_to_vllm_mapper
        load = partial(AutoWeightsLoader(self).load_weights, mapper=mapper)
        return load_checked(self, weights, load, mapper=mapper, ignored=IGNORED_TENSORS)

    def _speak(self, utterances: Sequence[Utterance]) -> list[torch.Tensor]:
        if self._speech is None:
            self._speech = Speech(self.token2wav, self._voices, use_graphs=False)
        return self._speech.speak(utterances)


class Speech:
    """Utterances to audio on a loaded model: pack, solve, vocode."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, voices: dict[str, Voice], *, use_graphs: bool) -> None:
        self._dit = model.code2wav_dit_model
        self._vocoder = model.code2wav_bigvgan_model
        self._transformer = BlockTransformer(self._dit)
        self._voices = voices
        self._encoded: dict[str, VoiceRows] = {}
        device = self._transformer.device
        self.use_capture(CudaCapture(device) if use_graphs and device.type == "cuda" else None)

    def use_capture(self, capture: Capture | None) -> None:
        """Use `capture` from the next warm_up on; None runs everything uncaptured."""
        self._has_graphs = capture is not None
        self._advance = GraphedFunction(self._step, capture)
        self._vocode = GraphedFunction(lambda mel: vocode(self._vocoder, mel), capture)

    def speak(self, utterances: Sequence[Utterance]) -> list[torch.Tensor]:
        """Returns audio float32 [samples] on the device of utterances with equal batch keys; NaN where it failed."""
        dit, device = self._dit, self._transformer.device
        frames = [utterance.codes.shape[0] * dit.repeats for utterance in utterances]
        needed = sum(count_blocks(count, dit.block_size) for count in frames)
        captured = graph_blocks(dit.block_size // dit.repeats)
        pack = pack_blocks(frames, dit.block_size, next_size(needed, captured) if self._has_graphs else needed)
        conditions = self._transformer.condition(
            pack,
            [utterance.codes for utterance in utterances],
            [self._encode_voice(utterance.voice) for utterance in utterances],
            [utterance.guidance for utterance in utterances] if utterances[0].is_guided else None,
        )
        noise = [
            make_noise(item.seed, count, dit.mel_dim, first_frame=item.first_code * dit.repeats)[0]
            for item, count in zip(utterances, frames, strict=True)
        ]
        mel = pack.fill(noise).to(device)
        times = time_points(utterances[0].steps, device)
        mel = solve(lambda value, begin, end: self._advance(value, begin, end, *conditions), mel, times)
        return self._vocode_all(pack.split(mel))

    def warm_up(self) -> None:
        """Encode every voice; capture, largest first: the smaller graphs then reuse the memory of the larger."""
        for name in self._voices:
            self._encode_voice(name)
        if not self._has_graphs:
            return
        dit, device = self._dit, self._transformer.device
        captured = 0
        times = time_points(2, device)
        voice = self._encode_voice(next(iter(self._voices)))
        block_codes = dit.block_size // dit.repeats
        for blocks in reversed(graph_blocks(block_codes)):
            frames = blocks * dit.block_size
            pack = pack_blocks([frames], dit.block_size)
            codes = torch.zeros(frames // dit.repeats, dtype=torch.int64)
            conditions = self._transformer.condition(pack, [codes], [voice], [1.0])
            mel = pack.fill([make_noise(0, frames, dit.mel_dim)[0]]).to(device)
            captured += self._advance.warm_up(mel, times[0], times[1], *conditions)
        for blocks in reversed(window_blocks(block_codes)):
            for count in reversed(GRAPH_WINDOWS):
                mel = torch.zeros(count, dit.mel_dim, blocks * dit.block_size, device=device)
                captured += self._vocode.warm_up(mel)
        logger.info("token2wav: %d CUDA graphs captured", captured)

    def _encode_voice(self, name: str) -> VoiceRows:
        if name not in self._encoded:
            self._encoded[name] = self._transformer.encode_voice(self._voices[name])
        return self._encoded[name]

    def _step(self, mel: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        conditions = Conditions(*tables)
        return advance(lambda time, value: self._transformer.velocity(time, value, conditions), mel, begin, end)

    def _vocode_all(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the audio of mels [frames, bins]; equally long mels share one forward."""
        by_length: dict[int, list[int]] = {}
        for index, mel in enumerate(mels):
            by_length.setdefault(mel.shape[0], []).append(index)
        audio: dict[int, torch.Tensor] = {}
        for indexes in by_length.values():
            batch = torch.stack([mels[index].T for index in indexes])
            audio |= zip(indexes, self._vocode(batch).float(), strict=True)
        return [audio[index] for index in range(len(mels))]
