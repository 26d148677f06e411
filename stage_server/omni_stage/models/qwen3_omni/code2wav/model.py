"""vLLM model class of code2wav: transformers' modules, run chunk by chunk (sound/).

Hooks (vllm_adapter/hooks.py): OneShotModel, KeepsStreams.

A request has all codes of a reply, or a chunk of a stream's codes. Requests of a step share a forward under two
conditions. First, they have equally many frames left, or each has at least PIECE_FRAMES left. Second, all of them are
at their first frame, or none is. Each request's audio is the same as if it ran alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from omni_stage.models.qwen3_omni.code2wav.streams import StreamPool
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked

PIECE_FRAMES = 64
"""Maximum number of frames of one request in one forward. A longer request is computed in pieces."""
STEP_FRAMES = 256
"""Maximum number of frames of all requests in one forward. In the published model a frame takes 14 MB at the widest
layer (measured on an H200), so 64 requests with PIECE_FRAMES frames each would take 57 GB in one forward."""


@dataclass(slots=True)
class _Chunk:
    """One request of a step, and its audio so far."""

    codes: torch.Tensor
    """int64 [frames, groups] on the CPU."""
    stream: str | None
    first_frame: int
    last: bool
    done: int = 0
    audio: list[torch.Tensor] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.first_frame + self.done

    @property
    def batch_key(self) -> tuple[int, bool]:
        """Chunks with equal keys may share a forward, of at most STEP_FRAMES frames."""
        return min(PIECE_FRAMES, self.codes.shape[0] - self.done), self.position == 0


class Code2WavModel(nn.Module, IsAttentionFree):
    """Qwen3-Omni's code2wav."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None, "code2wav.": "code2wav."})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.code2wav = Qwen3OmniMoeCode2Wav._from_config(vllm_config.model_config.hf_config).float()
        self.pooler = IdentityPooler()
        self._decoder: ChunkDecoder | None = None
        self._pool: StreamPool | None = None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but this model has no token embeddings."""
        raise NotImplementedError("code2wav has no token embeddings for vLLM; use generate()")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: vLLM requires this method, but this model has no autoregressive step."""
        raise NotImplementedError("code2wav is not autoregressive; use generate()")

    @property
    def pool(self) -> StreamPool:
        """The states of the open streams. The weights must already be on their device."""
        return self._parts()[1]

    @torch.inference_mode()
    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[torch.Tensor | Exception]:
        """Returns the audio of each request's codes, in order: float32 [samples] in [-1, 1], on the device.

        An exception in place of audio fails only that request. An error of the entire batch is raised, and leaves the
        state of every stream unchanged.
        """
        decoder, pool = self._parts()
        chunks: dict[int, _Chunk] = {}
        results: dict[int, torch.Tensor | Exception] = {}
        for index, request in enumerate(requests):
            try:
                chunks[index] = self._read(request)
            except OmniStageError as error:
                results[index] = error
        batch = list(chunks.values())
        if batch:
            names = [chunk.stream for chunk in batch]
            states = pool.read(names)
            while waiting := [row for row, chunk in enumerate(batch) if chunk.done < chunk.codes.shape[0]]:
                key = batch[waiting[0]].batch_key
                rows = [row for row in waiting if batch[row].batch_key == key][: max(1, STEP_FRAMES // key[0])]
                picked = torch.tensor(rows).to(decoder.device)
                group = [batch[row] for row in rows]
                codes = torch.stack([chunk.codes[chunk.done : chunk.done + key[0]] for chunk in group])
                audio, behind = decoder.advance(
                    codes.transpose(1, 2).to(decoder.device), [chunk.position for chunk in group], states.take(picked)
                )
                states.put(picked, behind)
                for chunk, samples in zip(group, audio, strict=True):
                    chunk.audio.append(samples)
                    chunk.done += key[0]
            # Join all audio before any state is written: a failure must leave every stream as it was.
            results |= {index: torch.cat(chunk.audio) for index, chunk in chunks.items()}
            pool.write(names, [chunk.position for chunk in batch], states)
            for chunk in batch:
                if chunk.last and chunk.stream is not None:
                    pool.drop(chunk.stream)
        return [results[index] for index in range(len(requests))]

    def end_stream(self, stream: str) -> None:
        """Free the state of a stream. Unknown ids are ignored."""
        if self._pool is not None:
            self._pool.drop(stream)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load code2wav's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        mapper = self.hf_to_vllm_mapper
        return load_checked(self, weights, partial(AutoWeightsLoader(self).load_weights, mapper=mapper), mapper=mapper)

    def _parts(self) -> tuple[ChunkDecoder, StreamPool]:
        if self._decoder is None or self._pool is None:
            self._decoder = ChunkDecoder(self.code2wav)
            self._pool = StreamPool(self._decoder.layout, self._decoder.device)
        return self._decoder, self._pool

    def _read(self, request: AdditionalInformationPayload) -> _Chunk:
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
        chunk = _Chunk(codes, stream, _integer(request, "first_frame"), bool(_integer(request, "last")))
        if stream is not None:
            self.pool.check(stream, chunk.first_frame)
        return chunk


def _integer(request: AdditionalInformationPayload, name: str) -> int:
    values = request.list(name) if name in request else [0]
    if len(values) != 1 or not isinstance(values[0], int):
        raise InvalidTensorError(f"{name}: must be one integer", field=name)
    return values[0]
