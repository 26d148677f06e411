"""vLLM model class of the talker: Llama layers over the projected sum of codec token embeddings and the runner's rows.

    h = layers(project(codec_embedding(token) + row))        at every position; the mask token has no codec embedding

The runner binds a buffer once and fills it with the rows before every forward. The model reads slices of that buffer,
so CUDA graphs replay with its current content. Hook (vllm_adapter/hooks.py): SupportsInputRows.

Only the layers are compiled. The code before them runs eagerly, or inside a full CUDA graph of a decode step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from omni_stage.vllm_adapter.checks.weights import load_checked


@support_torch_compile(
    dynamic_arg_dims={
        "input_ids": {0: "b"},
        "positions": {-1: "b"},
        "intermediate_tensors": {0: "b"},
        "inputs_embeds": {0: "b"},
    }
)
class TalkerLayers(LlamaModel):
    """Llama's layers for M-RoPE, compiled as one graph for any number of tokens.

    vLLM's LlamaModel declares dimension 0 of `positions` as dynamic, but M-RoPE positions are [3, n]. So it would be
    compiled only for the n of the first call. vLLM's Qwen2Model declares the positions correctly, but computes the head
    size as hidden_size // num_heads. Here the head size is 128, not 896 // 12.
    """


class TalkerModel(nn.Module, SupportsMRoPE):
    """Qwen2.5-Omni's talker."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "thinker.": None,
            "token2wav.": None,
            "talker.codec_head.": "lm_head.",
            "talker.model.embed_tokens.": "codec_embedding.",
            "talker.model.": "model.",
            "talker.thinker_to_talker_proj.": "projection.",
        }
    )
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.input_row_size: int = config.embedding_size
        self.codec_embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size)
        self.model = TalkerLayers(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        # The layers always get embeddings, and the checkpoint has no weights for an embedding table of their own.
        self.model.embed_tokens = None
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self._input_rows: torch.Tensor | None = None
        self._layer_inputs: torch.Tensor | None = None
        self.register_buffer("_never", _find_never_sampled(config), persistent=False)

    def bind_input_rows(self, buffer: torch.Tensor) -> None:
        """Keep the runner's buffer [max_num_tokens, input_row_size], whose first rows `forward` reads."""
        self._input_rows = buffer
        # Layers in captured graphs read their input at a fixed address.
        self._layer_inputs = buffer.new_zeros(buffer.shape[0], self.config.hidden_size)

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns projected codec embeddings [n, hidden_size], without rows. vLLM requires this method."""
        return self.projection(self.codec_embedding(input_ids))

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[torch.Tensor, int]:
        """Returns consecutive positions for a request without positions, such as vLLM's profile run."""
        positions = torch.arange(len(input_tokens))
        return positions.expand(3, -1).contiguous(), 0

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """Returns hidden states [n, hidden_size] of n tokens."""
        is_token = (input_ids != self.config.tts_codec_mask_token_id).unsqueeze(-1)
        embeddings = self.codec_embedding(input_ids) * is_token
        if self._input_rows is None or self._layer_inputs is None:
            return self.model(None, positions, intermediate_tensors, self.projection(embeddings))
        count = input_ids.shape[0]
        layer_inputs = self._layer_inputs[:count].copy_(self.projection(embeddings + self._input_rows[:count]))
        return self.model(None, positions, intermediate_tensors, layer_inputs)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Returns logits [n, vocab_size]; -inf for tokens that neither have audio nor end the stream."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            logits.masked_fill_(self._never, float("-inf"))
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the talker's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        mapper = self.hf_to_vllm_mapper
        load = partial(AutoWeightsLoader(self).load_weights, mapper=mapper)
        return load_checked(self, weights, load, mapper=mapper)


def _find_never_sampled(config: Any) -> torch.Tensor:
    """Returns bool [vocab_size]: the ids that are never sampled.

    These are the start token, which transformers suppresses too, and ids that neither have audio nor end the stream.
    """
    never = torch.zeros(config.vocab_size, dtype=torch.bool)
    never[config.omni_code_limit :] = True
    never[[config.tts_codec_pad_token_id, config.tts_codec_end_token_id]] = False
    never[config.tts_codec_start_token_id] = True
    return never
