"""vLLM model class of code2wav: transformers' modules, run chunk by chunk.

Hooks (vllm_adapter/hooks.py): OneShotModel, KeepsStreams.

A request has all codes of a reply, or a chunk of a stream's codes. Requests of a step share forwards, whether their
streams begin or continue (steps.py). Each request's audio is the same as if it ran alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_stage.errors import InvalidTensorError, OmniStageError
from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.steps import Chunk, StepRunner
from omni_stage.models.qwen3_omni.code2wav.streams import StreamPool
from omni_stage.models.shared.graphs import CudaCapture
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings


class Code2WavModel(nn.Module, IsAttentionFree):
    """Qwen3-Omni's code2wav."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None, "code2wav.": "code2wav."})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.code2wav = Qwen3OmniMoeCode2Wav._from_config(vllm_config.model_config.hf_config).float()
        self.pooler = IdentityPooler()
        self._settings = DiffusionSettings.from_additional_config(vllm_config.additional_config)
        self._steps: StepRunner | None = None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but this model has no token embeddings."""
        raise NotImplementedError("code2wav has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but this model has no autoregressive step."""
        raise NotImplementedError("code2wav is not autoregressive; use generate()")

    @property
    def pool(self) -> StreamPool:
        """The states of the open streams. The weights must already be on their device."""
        return self._runner().pool

    @torch.inference_mode()
    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[torch.Tensor | Exception]:
        """Returns the audio of each request's codes, in order: float32 [samples] in [-1, 1], on the device.

        An exception in place of audio fails only that request. An error of the entire batch is raised, and leaves the
        state of every stream unchanged.
        """
        chunks: dict[int, Chunk] = {}
        results: dict[int, torch.Tensor | Exception] = {}
        for index, request in enumerate(requests):
            try:
                chunks[index] = self._read(request)
            except OmniStageError as error:
                results[index] = error
        if chunks:
            results |= zip(chunks, self._runner().run(list(chunks.values())), strict=True)
        return [results[index] for index in range(len(requests))]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture CUDA graphs, if enabled, and run all other sizes of steps. Call after load_weights."""
        self._runner().warm_up()

    def end_stream(self, stream: str) -> None:
        """Free the state of a stream. Unknown ids are ignored."""
        if self._steps is not None:
            self._steps.pool.drop(stream)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load code2wav's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        mapper = self.hf_to_vllm_mapper
        return load_checked(self, weights, partial(AutoWeightsLoader(self).load_weights, mapper=mapper), mapper=mapper)

    def _runner(self) -> StepRunner:
        if self._steps is None:
            decoder = ChunkDecoder(self.code2wav)
            graphs = self._settings.cuda_graphs and decoder.device.type == "cuda"
            capture = CudaCapture(decoder.device) if graphs else None
            self._steps = StepRunner(decoder, self.code2wav.config.num_quantizers, capture)
        return self._steps

    def _read(self, request: AdditionalInformationPayload) -> Chunk:
        """Returns the request's chunk.

        Raises InvalidTensorError; ModelExecutionError if the chunk does not continue its stream.
        """
        codes, config = request.tensor("codes"), self.code2wav.config
        if codes.dim() != 2 or codes.shape[1] != config.num_quantizers or codes.shape[0] < 1:
            raise InvalidTensorError(
                f"codes: must be [frames, {config.num_quantizers}], got {list(codes.shape)}", field="codes"
            )
        # An id outside of the embedding table would end the engine and every request in it.
        if int(codes.min()) < 0 or int(codes.max()) >= config.codebook_size:
            raise InvalidTensorError(
                f"codes: every code must be at least 0 and below {config.codebook_size}",
                field="codes",
                limit=config.codebook_size,
            )
        stream = str(request.list("stream")[0]) if "stream" in request else None
        chunk = Chunk(codes, stream, _integer(request, "first_frame"), bool(_integer(request, "last")))
        if stream is not None:
            self.pool.check(stream, chunk.first_frame)
        return chunk


def _integer(request: AdditionalInformationPayload, name: str) -> int:
    values = request.list(name) if name in request else [0]
    if len(values) != 1 or not isinstance(values[0], int):
        raise InvalidTensorError(f"{name}: must be one integer", field=name)
    return values[0]
