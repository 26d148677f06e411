"""vLLM model class of the talker: Qwen3 MoE layers with a shared expert, and the code predictor inside each step.

    h = layers(project(row) + codec_embedding(token) + embeddings of the frame's other codes)

The runner provides the rows (SupportsInputRows): the thinker's embedding for text, and a hidden state for media. Each
kind has its own projection, selected by the token at the position (checkpoint.CodecTokens.placeholders). As soon as a
frame's first code is sampled, the code predictor computes the frame's other codes (ActsAfterSampling). They are stored
by position (FollowsRequests), because they are part of the input at the next position.

Only the layers are compiled. What `forward` computes before them runs eagerly, or inside a full CUDA graph of a decode
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
    Qwen3OmniMoeTalkerResizeMLP,
)
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from omni_stage.models.qwen3_omni.checkpoint import read_codec_tokens
from omni_stage.models.qwen3_omni.talker.component import GREEDY, SEED
from omni_stage.models.qwen3_omni.talker.predictor import CodePredictor, GraphedPredictor
from omni_stage.models.shared.graphs import CudaCapture
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.checks.weights import load_checked
from omni_stage.vllm_adapter.hooks import SampledTokens, ScheduledSpan
from omni_stage.vllm_adapter.worker.host_memory import to_device


@support_torch_compile(
    dynamic_arg_dims={
        "input_ids": {0: "b"},
        "positions": {-1: "b"},
        "intermediate_tensors": {0: "b"},
        "inputs_embeds": {0: "b"},
    }
)
class TalkerLayers(Qwen3MoeModel):
    """Qwen3's MoE layers for M-RoPE positions, which are [3, n]; compiled as one graph for any number of tokens."""


class TalkerModel(nn.Module, SupportsMRoPE):
    """Qwen3-Omni's talker."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "thinker.": None,
            "code2wav.": None,
            "talker.codec_head.": "lm_head.",
            "talker.model.codec_embedding.": "codec_embedding.",
            "talker.": "",
        }
    )
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        talker = Qwen3OmniMoeTalkerConfig.from_dict(config.omni_talker)
        self.config = config
        self.input_row_size: int = talker.thinker_hidden_size
        codec = read_codec_tokens(talker, config.omni_codes)
        self._text_here, self._media_here = codec.placeholders
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_projection = Qwen3OmniMoeTalkerResizeMLP(talker)
        self.hidden_projection = Qwen3OmniMoeTalkerResizeMLP(talker)
        self.model = TalkerLayers(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        # The layers always get embeddings, and the checkpoint has no weights for an embedding table of their own.
        self.model.embed_tokens = None
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.code_predictor = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration._from_config(
            talker.code_predictor_config, dtype=torch.get_default_dtype()
        )
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        never = torch.zeros(config.vocab_size, dtype=torch.bool)
        never[codec.never_sampled.start :] = True
        never[codec.end] = False
        self.register_buffer("_never", never, persistent=False)
        self._predictor = CodePredictor(self.code_predictor)
        self._has_graphs = not vllm_config.model_config.enforce_eager
        self._most_frames = vllm_config.scheduler_config.max_num_seqs
        self._graphed = GraphedPredictor(self._predictor, None, self._most_frames)
        self._rows: torch.Tensor | None = None
        self._layer_inputs: torch.Tensor | None = None
        self._code_rows: torch.Tensor | None = None
        self._filled = 0
        """Only rows [0, filled) of _code_rows may differ from zero."""
        self._codes: FrameCodes | None = None
        self._settings: dict[str, tuple[bool, int]] = {}
        """By request: whether the predictor is greedy, and its seed."""
        self._ends: dict[str, int] = {}
        """By request: the position of the token that the step samples. It follows the last position that the step
        computes."""

    # Input

    def bind_input_rows(self, buffer: torch.Tensor) -> None:
        """Keep the runner's buffer [max_num_tokens, input_row_size], whose first rows `forward` reads.

        With CUDA graphs, also captures the graphs of the code predictor.
        """
        self._rows = buffer
        # Captured graphs of the layers, and of what runs before them, read their input at a fixed address.
        self._layer_inputs = buffer.new_zeros(buffer.shape[0], self.config.hidden_size)
        self._code_rows = torch.zeros_like(self._layer_inputs)
        self._codes = FrameCodes(self._predictor.groups - 1, buffer.device)
        if self._has_graphs and buffer.device.type == "cuda":
            self._graphed = GraphedPredictor(self._predictor, CudaCapture(buffer.device), self._most_frames)
            with torch.inference_mode():
                self._graphed.warm_up(buffer, self.config.hidden_size)

    def begin_request(self, request_id: str, payload: AdditionalInformationPayload | None) -> None:
        """Store the request's settings for the code predictor."""
        if payload is not None and SEED in payload:
            greedy, seed = payload.list(GREEDY)[0], payload.list(SEED)[0]
            self._settings[request_id] = (bool(greedy), int(seed or 0))

    def end_request(self, request_id: str) -> None:
        """Free the request's state."""
        self._settings.pop(request_id, None)
        self._ends.pop(request_id, None)
        if self._codes is not None:
            self._codes.drop(request_id)

    def begin_step(self, spans: Sequence[ScheduledSpan]) -> None:
        """Set what `forward` adds to the step's input: the embeddings of each frame's codes except the first one.

        Positions without such codes get 0.
        """
        if self._codes is None or self._code_rows is None:
            return
        if self._filled:
            self._code_rows[: self._filled].zero_()
            self._filled = 0
        self._ends.update((span.request_id, span.start + span.length) for span in spans)
        places = self._codes.find(spans)
        if places.tokens:
            index = to_device(places.tokens, self._code_rows.device)
            with torch.inference_mode():
                self._code_rows[index] = self._predictor.embed(self._codes.read(places)).to(self._code_rows.dtype)
            self._filled = max(places.tokens) + 1

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the codec embeddings [n, hidden_size]; the input rows are not added. vLLM requires this method."""
        embeddings: torch.Tensor = self.codec_embedding(input_ids)
        return embeddings

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[torch.Tensor, int]:
        """Returns consecutive positions for a request without positions, such as vLLM's profile run."""
        return torch.arange(len(input_tokens)).expand(3, -1).contiguous(), 0

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """Returns hidden states [n, hidden_size] of n tokens."""
        is_media = (input_ids == self._media_here).unsqueeze(-1)
        is_code = ~is_media & (input_ids != self._text_here).unsqueeze(-1)
        embeddings = self.codec_embedding(input_ids) * is_code
        if self._rows is None or self._layer_inputs is None or self._code_rows is None:
            return self.model(None, positions, intermediate_tensors, embeddings)
        count = input_ids.shape[0]
        rows = self._rows[:count]
        projected = torch.where(is_media, self.hidden_projection(rows), self.text_projection(rows))
        layer_inputs = self._layer_inputs[:count].copy_(projected + embeddings + self._code_rows[:count])
        return self.model(None, positions, intermediate_tensors, layer_inputs)

    # Output

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Returns logits [n, vocab_size]; -inf for tokens that neither have audio nor end the stream."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            logits.masked_fill_(self._never, float("-inf"))
        return logits

    def after_sampling(self, sampled: SampledTokens) -> dict[str, torch.Tensor]:
        """Returns the frames int64 [n, groups] of the sampled first codes. Stores each frame's other codes."""
        if self._codes is None:
            return {}
        settings = [self._settings.get(request_id, (True, 0)) for request_id in sampled.request_ids]
        places = [self._ends[request_id] for request_id in sampled.request_ids]
        chosen = to_device(
            [[greedy, seed, place] for (greedy, seed), place in zip(settings, places, strict=True)],
            sampled.token_ids.device,
        )
        tokens = sampled.token_ids.long()
        codes = self._graphed.predict(
            sampled.hidden_states, self.codec_embedding(tokens), chosen[:, 0].bool(), chosen[:, 1], chosen[:, 2]
        )
        # Every rank predicts. One differing code would divide their input, and so their later tokens, for good.
        codes = get_tp_group().broadcast(codes)
        self._codes.write(sampled.request_ids, places, codes)
        return {"codes": torch.cat([tokens.unsqueeze(1), codes], dim=1)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the talker's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        mapper = self.hf_to_vllm_mapper
        return load_checked(self, weights, partial(AutoWeightsLoader(self).load_weights, mapper=mapper), mapper=mapper)


_FIRST_ROWS = 8
_FIRST_FRAMES = 256


@dataclass(slots=True)
class _Kept:
    row: int
    first: int
    """Position of the first frame."""
    frames: int


@dataclass(frozen=True, slots=True)
class Places:
    """The tokens of a step that have stored codes. Lists on the host, with one entry for each of these tokens."""

    tokens: list[int]
    """Index of the token in the step's batch."""
    rows: list[int]
    """The request's row in the table."""
    frames: list[int]
    """Index of the frame in that row."""


class FrameCodes:
    """Codes of the running requests' frames. For use by one thread.

    Stores each frame's codes after the first, by request and position: they are part of the input at that position.

    One table on the device holds all codes. They are written as they are predicted, without waiting for the device; the
    host knows only how many frames each request has. When a position is computed again, after a preemption or in a
    later part of a streamed request, the codes that were stored for it are read.
    """

    def __init__(self, codes: int, device: torch.device) -> None:
        """`codes`: number of a frame's codes after the first."""
        # This table is written inside and outside of inference mode, so it must not be an inference tensor.
        with torch.inference_mode(False):
            self._table = torch.zeros(_FIRST_ROWS, _FIRST_FRAMES, codes, dtype=torch.int32, device=device)
        self._requests: dict[str, _Kept] = {}
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._requests)

    def drop(self, request_id: str) -> None:
        """Free the codes of a request that has ended. Unknown ids are ignored."""
        kept = self._requests.pop(request_id, None)
        if kept is not None:
            self._free.append(kept.row)

    def write(self, request_ids: Sequence[str], positions: Sequence[int], codes: torch.Tensor) -> None:
        """Store the codes int64 [n, codes] of the frames at these positions of the requests."""
        rows, frames = [], []
        for request_id, position in zip(request_ids, positions, strict=True):
            kept = self._requests.get(request_id)
            if kept is None:
                kept = self._requests[request_id] = _Kept(self._lend(), position, 0)
            frame = position - kept.first
            kept.frames = max(kept.frames, frame + 1)
            rows.append(kept.row)
            frames.append(frame)
        self._widen(max(frames) + 1)
        places = to_device([rows, frames], self._table.device)
        self._table[places[0], places[1]] = codes.to(torch.int32)

    def find(self, spans: Sequence[ScheduledSpan]) -> Places:
        """Returns the tokens of a step that have stored codes."""
        places = Places([], [], [])
        for span in spans:
            kept = self._requests.get(span.request_id)
            if kept is None:
                continue
            begin = max(span.start, kept.first)
            end = min(span.start + span.length, kept.first + kept.frames)
            for position in range(begin, end):
                places.tokens.append(span.offset + position - span.start)
                places.rows.append(kept.row)
                places.frames.append(position - kept.first)
        return places

    def read(self, places: Places) -> torch.Tensor:
        """Returns the codes int64 [n, codes] at these places."""
        index = to_device([places.rows, places.frames], self._table.device)
        return self._table[index[0], index[1]].long()

    def _lend(self) -> int:
        if not self._free:
            rows = self._table.shape[0]
            self._table = torch.cat([self._table, torch.zeros_like(self._table)])
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()

    def _widen(self, frames: int) -> None:
        while frames > self._table.shape[1]:
            self._table = torch.cat([self._table, torch.zeros_like(self._table)], dim=1)
