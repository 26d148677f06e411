"""vLLM model class of token2wav: transformers' diffusion transformer and vocoder, with our own forward (wave/).

Requests of an engine step share one solver loop if they have the same number of solver steps and are all guided, or all
unguided. Their lengths, voices, seeds and strengths of guidance may differ. Requests of equal length also share the
vocoder's forward. Each request's audio is the same as if it ran alone.

Hook (vllm_adapter/hooks.py): OneShotModel.
"""

from __future__ import annotations

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
from omni_stage.models.qwen2_5_omni.checkpoint import read_voices
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import Speech
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance, cut_window, read_utterance
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings

IGNORED_TENSORS = ("token2wav.code2wav_dit_model.rotary_embed.inv_freq",)
"""Tensors of the published checkpoints that are not loaded. transformers 5 computes this table of the rotary embedding
from the configuration."""


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
        """Raises NotImplementedError: vLLM requires this method, but a diffusion model has no token embeddings."""
        raise NotImplementedError("token2wav has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but a diffusion model has no autoregressive step."""
        raise NotImplementedError("token2wav is not autoregressive; use generate()")

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[AdditionalInformationPayload]
    ) -> list[torch.Tensor | dict[str, torch.Tensor] | Exception]:
        """Returns one utterance's audio for each request, in order: float32 [samples] in [-1, 1], on the device.

        A window's result is {"output": its audio, "tail": the samples after it}; the last window has no tail. An
        exception in place of a result fails only that request. An error of the entire batch is raised. If a computation
        gave NaN or infinity, the audio is NaN.
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
            speech = self._ready()
            audios = speech.speak([utterance for _, utterance in batch])
            for (index, utterance), audio in zip(batch, audios, strict=True):
                try:
                    results[index] = cut_window(audio, utterance, speech.audio_shape)
                except ModelExecutionError as error:
                    results[index] = error
        return [results[index] for index in range(len(requests))]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Encode the voices and, if enabled, capture CUDA graphs for the sizes of windows. Call after load_weights."""
        speech = self._speech = Speech(self.token2wav, self._voices, use_graphs=self._settings.cuda_graphs)
        speech.warm_up()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load token2wav's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        mapper = self.hf_to_vllm_mapper
        load = partial(AutoWeightsLoader(self).load_weights, mapper=mapper)
        return load_checked(self, weights, load, mapper=mapper, ignored=IGNORED_TENSORS)

    def _ready(self) -> Speech:
        if self._speech is None:
            self._speech = Speech(self.token2wav, self._voices, use_graphs=False)
        return self._speech
