"""The code predictor: from a frame's first code and the talker's hidden state, the frame's other codes.

transformers' modules, run for all frames of a step at once. A frame is a sequence of its own: hidden state, first code,
second code ... Source: transformers 5.19, Qwen3OmniMoeTalkerForConditionalGeneration.prepare_inputs_for_generation. It
is greedy where the talker is; otherwise top_k 50, top_p 0.8, temperature 1, no penalty, whatever the talker's values.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from omni_stage.models.qwen3_omni.talker.chance import pick_tokens, uniform


class CodePredictor:
    """A loaded Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration. Holds no state."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = list(model.model.layers)
        self._config = model.config

    @property
    def groups(self) -> int:
        """Codes of a frame, the first included."""
        return int(self._config.num_code_groups)

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Sum [n, H] of the embeddings of the codes int64 [n, groups - 1] behind the first, in the order of groups."""
        tables = self._model.model.codec_embedding
        total = tables[0](codes[:, 0])
        for group in range(1, self.groups - 1):
            total = total + tables[group](codes[:, group])
        return total

    def predict(
        self,
        hidden: torch.Tensor,
        first: torch.Tensor,
        greedy: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """The codes int64 [n, groups - 1] behind the first.

        `hidden` [n, H]: the state that the first code was sampled from; `first` [n, H]: its embedding by the talker;
        `greedy` bool [n]; `seeds`, `positions` int64 [n]: what chance depends on, and nothing else, so that a frame
        that is computed again or in other company is the same.
        """
        count, groups = hidden.shape[0], self.groups
        keys, values = self._new_cache(count, hidden)
        cos, sin = self._angles(hidden)
        inputs = torch.stack([hidden, first], dim=1)
        codes: list[torch.Tensor] = []
        begin = 0
        for group in range(groups - 1):
            end = begin + inputs.shape[1]
            state = self._forward(inputs, begin, end, keys, values, cos, sin)
            logits = self._model.lm_head[group](state).float()
            chance = uniform(seeds, positions, group)
            codes.append(torch.where(greedy, logits.argmax(dim=-1), pick_tokens(logits, chance)))
            if group < groups - 2:
                inputs = self._model.model.codec_embedding[group](codes[-1]).unsqueeze(1)
            begin = end
        return torch.stack(codes, dim=1)

    def _forward(
        self,
        inputs: torch.Tensor,
        begin: int,
        end: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """The last state [n, H] of the positions [begin, end), whose keys and values go into the cache."""
        hidden = inputs
        for index, layer in enumerate(self._layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden)
            query = attention.q_norm(attention.q_proj(normed).unflatten(-1, (-1, attention.head_dim))).transpose(1, 2)
            key = attention.k_norm(attention.k_proj(normed).unflatten(-1, (-1, attention.head_dim))).transpose(1, 2)
            value = attention.v_proj(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            keys[index, :, :, begin:end] = _rotate(key, cos[begin:end], sin[begin:end])
            values[index, :, :, begin:end] = value
            mixed = F.scaled_dot_product_attention(
                _rotate(query, cos[begin:end], sin[begin:end]),
                keys[index, :, :, :end],
                values[index, :, :, :end],
                # Two positions at the beginning, then one at a time, which sees all before it.
                is_causal=begin == 0,
                scale=attention.scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        state: torch.Tensor = self._model.model.norm(hidden[:, -1])
        return state

    def _new_cache(self, count: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self._config
        shape = (len(self._layers), count, config.num_key_value_heads, self.groups, config.head_dim)
        return like.new_empty(shape), like.new_empty(shape)

    def _angles(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines float32 [groups, head size]: in bfloat16 they turn speech to noise after a while."""
        places = torch.arange(self.groups, device=like.device)
        cos, sin = self._model.model.rotary_emb(like.new_empty(0, dtype=torch.float32), places[None])
        return cos[0], sin[0]


def _rotate(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = values.float().chunk(2, dim=-1)
    turned = values.float() * cos + torch.cat([-second, first], dim=-1) * sin
    return turned.to(values.dtype)
