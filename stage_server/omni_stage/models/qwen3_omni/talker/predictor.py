"""The code predictor: computes a frame's other codes from its first code and the talker's hidden state.

It runs transformers' modules for all frames of a step in one batch. Each frame is a separate sequence: hidden state,
first code, second code and so on. The predictor is greedy if the talker is. Otherwise it uses top_k 50, top_p 0.8,
temperature 1 and no penalty, whatever the talker's values are. Source: transformers 5.19,
Qwen3OmniMoeTalkerForConditionalGeneration.prepare_inputs_for_generation.

Samples codes for many frames in one call, with random numbers that depend only on seed, position and group. Pure.

A generator for each request would need one call per request, and a rewind when a preempted request is computed again. A
hash of the three values needs neither.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from omni_stage.models.shared.graphs import Capture, GraphedFunction, next_size

TOP_K = 50
TOP_P = 0.8
"""transformers' code_predictor.generate(top_k=50, top_p=0.8)."""
_MASK = (1 << 31) - 1


def uniform(seeds: torch.Tensor, positions: torch.Tensor, group: int) -> torch.Tensor:
    """Returns random numbers float32 [n] in [0, 1) for `seeds` and `positions` int64 [n] and a group."""
    state = _mix(seeds & _MASK)
    state = _mix(state ^ (seeds >> 31 & _MASK))
    state = _mix(state ^ (positions & _MASK))
    state = _mix(state ^ group)
    # 24 bits: the precision of a float32 below one.
    return (state >> 7).to(torch.float32) * (1.0 / (1 << 24))


def pick_tokens(logits: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Returns tokens int64 [n], sampled from logits float32 [n, V] with top-k and top-p.

    Only the TOP_K likeliest tokens are considered. The candidates are the smallest number of them, likeliest first,
    whose probabilities add up to at least TOP_P. `chance` float32 [n] in [0, 1) selects the candidate at this fraction
    of their cumulative probability.
    """
    likeliest, tokens = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1)
    shares = likeliest.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    shares = torch.where(before < TOP_P, shares, 0.0)
    reached = shares.cumsum(dim=-1)
    chosen = (reached <= chance.unsqueeze(-1) * reached[:, -1:]).sum(dim=-1)
    last = (shares > 0).sum(dim=-1) - 1
    return tokens.gather(-1, torch.minimum(chosen, last).unsqueeze(-1)).squeeze(-1)


def _mix(state: torch.Tensor) -> torch.Tensor:
    """Returns 31 mixed bits, each of which depends on all 31 input bits. Products stay below 2**63."""
    for factor, shift in ((0x45D9F3B, 16), (0x2C1B3C6D, 15)):
        state = (state ^ (state >> shift)) & _MASK
        state = (state * factor + 0x3C6EF35) & _MASK
    return (state ^ (state >> 16)) & _MASK


class CodePredictor:
    """A loaded Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration. Stateless."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = list(model.model.layers)
        self._config = model.config

    @property
    def groups(self) -> int:
        """Number of codes in a frame, including the first."""
        return int(self._config.num_code_groups)

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Returns the sums [n, H] of the embeddings of each frame's codes after the first, int64 [n, groups - 1]."""
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
        """Returns the codes int64 [n, groups - 1] after the first.

        `hidden` [n, H]: the state from which the first code was sampled; `first` [n, H]: the talker's embedding of the
        first code; `greedy`: bool [n]; `seeds`, `positions`: int64 [n]. The random numbers depend only on seed,
        position and group, so a frame has the same codes if it is computed again or in another batch.
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
        """Returns the state [n, H] at position end - 1. Caches the keys and values of positions [begin, end)."""
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
                # The first call has two positions. Later calls have one, which attends to all positions before it.
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
        """Returns cosines and sines, float32 [groups, head size]: in bfloat16, speech would turn to noise over time."""
        places = torch.arange(self.groups, device=like.device)
        cos, sin = self._model.model.rotary_emb(like.new_empty(0, dtype=torch.float32), places[None])
        return cos[0], sin[0]


class GraphedPredictor:
    """A CodePredictor that computes an entire frame as one CUDA graph, instead of with thousands of kernel launches.

    On an H200 a frame took 70 ms without a graph, nearly the 80 ms of its audio, and 14 ms with a graph.
    """

    def __init__(self, predictor: CodePredictor, capture: Capture | None, maximum: int) -> None:
        """`capture` is None if there are no graphs; `maximum`: number of frames in the largest step."""
        self._predict = GraphedFunction(predictor.predict, capture)
        self._sizes = graph_sizes(maximum) if capture is not None else ()

    def warm_up(self, like: torch.Tensor, hidden_size: int) -> None:
        """Capture a graph for every size, the largest first, on the device and in the dtype of `like`.

        The weights must already be loaded.
        """
        for size in reversed(self._sizes):
            rows = like.new_zeros(size, hidden_size)
            numbers = torch.zeros(size, dtype=torch.int64, device=like.device)
            self._predict.warm_up(rows, rows, numbers.bool(), numbers, numbers)

    def predict(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns what CodePredictor.predict returns. Pads the batch with zeros to the next captured size."""
        count = inputs[0].shape[0]
        missing = next_size(count, self._sizes) - count
        if missing:
            inputs = tuple(torch.cat([given, given.new_zeros(missing, *given.shape[1:])]) for given in inputs)
        return self._predict(*inputs)[:count]


def graph_sizes(maximum: int) -> tuple[int, ...]:
    """Returns the batch sizes, in frames, that are captured: powers of two below `maximum`, and `maximum`."""
    powers = [1 << power for power in range(maximum.bit_length()) if 1 << power < maximum]
    return (*powers, maximum)


def _rotate(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = values.float().chunk(2, dim=-1)
    turned = values.float() * cos + torch.cat([-second, first], dim=-1) * sin
    return turned.to(values.dtype)
