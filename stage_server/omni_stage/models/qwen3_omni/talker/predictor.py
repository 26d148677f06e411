"""The code predictor: computes a frame's other codes from its first code and the talker's hidden state.

It computes what transformers' modules compute, with their weights, for all frames of a step in one batch, but in fewer
kernels: a frame takes many small ones, and their number decides its time. Each frame is a separate sequence: hidden
state, first code, second code and so on. The predictor is greedy if the talker is. Otherwise it uses top_k 50,
top_p 0.8, temperature 1 and no penalty, whatever the talker's values are. Source: transformers 5.19,
Qwen3OmniMoeTalkerForConditionalGeneration.prepare_inputs_for_generation.

Samples codes for many frames in one call, with random numbers that depend only on seed, position and group. Pure.

A generator for each request would need one call per request, and a rewind when a preempted request is computed again. A
hash of the three values needs neither.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
import torch.nn.functional as F

from omni_stage.models.shared.graphs import (
    Capture,
    GraphedFunction,
    add_linear,
    graph_sizes,
    join,
    join_linear,
    next_size,
    normalize,
)

logger = logging.getLogger(__name__)

TOP_K = 50
TOP_P = 0.8
"""transformers' code_predictor.generate(top_k=50, top_p=0.8)."""
_MASK = (1 << 31) - 1


def uniform(seeds: torch.Tensor, positions: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns random numbers float32 [n, groups] in [0, 1) for `seeds` and `positions` int64 [n]."""
    state = _mix(seeds & _MASK)
    state = _mix(state ^ (seeds >> 31 & _MASK))
    state = _mix(state ^ (positions & _MASK))
    state = _mix(state[:, None] ^ torch.arange(groups, device=seeds.device))
    # 24 bits: the precision of a float32 below one.
    return (state >> 7).to(torch.float32) * (1.0 / (1 << 24))


def pick_tokens(logits: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Returns tokens int64 [n], sampled from logits [n, V] with top-k and top-p.

    Only the TOP_K likeliest tokens are considered. The candidates are the smallest number of them, likeliest first,
    whose probabilities add up to at least TOP_P. `chance` float32 [n] in [0, 1) selects the candidate at this fraction
    of their cumulative probability.
    """
    likeliest, tokens = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1)
    reached = likeliest.softmax(dim=-1, dtype=torch.float32).cumsum(dim=-1)
    # The last candidate is the first that reaches TOP_P, and all before it are followed by a candidate.
    followed = reached < TOP_P
    followed[:, -1] = False
    total = reached.masked_fill(followed, 2.0).amin(dim=-1)
    chosen = (followed & (reached <= (chance * total)[:, None])).sum(dim=-1)
    return tokens.gather(-1, chosen[:, None])[:, 0]


def _mix(state: torch.Tensor) -> torch.Tensor:
    """Returns 31 mixed bits, each of which depends on all 31 input bits. Products stay below 2**63."""
    for factor, shift in ((0x45D9F3B, 16), (0x2C1B3C6D, 15)):
        state = (state ^ (state >> shift)) & _MASK
        state = (state * factor + 0x3C6EF35) & _MASK
    return (state ^ (state >> 16)) & _MASK


class CodePredictor:
    """A loaded Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration. Stateless."""

    def __init__(self, model: Any) -> None:
        """Joins matrices of `model` that read the same input. Its own parameters become views of the joined ones, so
        the weights may be loaded before or after."""
        config = model.config
        self._model = model
        self._layers = [_Layer(layer, config) for layer in model.model.layers]
        self._tables = join([table.weight for table in model.model.codec_embedding])
        self._norm = model.model.norm
        self.hidden_size = int(config.hidden_size)
        self.groups = int(config.num_code_groups)
        """Number of codes in a frame, including the first."""
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        self._shape = (len(self._layers), heads, self.groups, config.head_dim)
        self._vocabulary = int(config.vocab_size)

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Returns the sums [n, H] of the embeddings of each frame's codes after the first, int64 [n, groups - 1]."""
        first = torch.arange(self.groups - 1, device=codes.device) * self._vocabulary
        return F.embedding(codes + first, self._tables).sum(dim=1)

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
        layers, *cache_shape = self._shape
        cache = hidden.new_empty(layers, hidden.shape[0], *cache_shape)
        chances = uniform(seeds, positions, self.groups - 1)
        rotations = self._rotations(hidden.device)
        inputs = torch.stack([hidden, first], dim=1)
        codes: list[torch.Tensor] = []
        begin = 0
        for group in range(self.groups - 1):
            end = begin + inputs.shape[1]
            for layer, own, rotation in zip(self._layers, cache, rotations, strict=True):
                inputs = layer.forward(inputs, begin, end, own, rotation[:, :, begin:end])
            logits = self._model.lm_head[group](normalize(inputs[:, -1], self._norm))
            picked = pick_tokens(logits, chances[:, group])
            codes.append(torch.where(greedy, logits.argmax(dim=-1), picked))
            if group < self.groups - 2:
                inputs = self._model.model.codec_embedding[group](codes[-1]).unsqueeze(1)
            begin = end
        return torch.stack(codes, dim=1)

    def _rotations(self, device: torch.device) -> torch.Tensor:
        """Returns the factors of each layer's normalized queries and keys, and of the same with their halves exchanged.

        float32 [layers, 2, heads, groups, head size]: the rotary embedding, times the weights of the normalization. In
        bfloat16, speech would turn to noise over time.
        """
        places = torch.arange(self.groups, device=device)
        cos, sin = self._model.model.rotary_emb(torch.empty(0, device=device), places[None])
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        weights = torch.stack([layer.head_weights() for layer in self._layers]).unsqueeze(2)
        return torch.stack([weights * cos[0], weights.roll(half, -1) * sin], dim=1)


class _Layer:
    """A layer of the predictor, with its query, key and value matrices joined, and its gate and up matrices."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._layer, self._attention, self._down = layer, attention, mlp.down_proj
        self._activation = mlp.act_fn
        self._inputs, self._bias = join_linear((attention.q_proj, attention.k_proj, attention.v_proj))
        self._gates, _ = join_linear((mlp.gate_proj, mlp.up_proj))
        self._queries, self._keys = config.num_attention_heads, config.num_key_value_heads
        self._size = config.head_dim

    def head_weights(self) -> torch.Tensor:
        """Returns the weights float32 [query heads + key heads, head size] of the normalization of queries and keys."""
        queries = self._attention.q_norm.weight.expand(self._queries, -1)
        return torch.cat([queries, self._attention.k_norm.weight.expand(self._keys, -1)]).float()

    def forward(
        self, hidden: torch.Tensor, begin: int, end: int, cache: torch.Tensor, rotation: torch.Tensor
    ) -> torch.Tensor:
        """Returns the output [n, positions, H] for positions [begin, end), and caches their keys and values.

        `cache` [n, heads, groups, head size]: queries, keys and values. The queries are there only so that one kernel
        writes them and the keys. `rotation`: of this layer (_rotations).
        """
        attention, turning = self._attention, self._queries + self._keys
        joined = F.linear(normalize(hidden, self._layer.input_layernorm), self._inputs, self._bias)
        heads = joined.view(*joined.shape[:2], -1, self._size).transpose(1, 2)
        # Without weights: they are in the rotation.
        normed = F.rms_norm(heads[:, :turning], (self._size,), None, attention.q_norm.variance_epsilon)
        turned = torch.addcmul(normed * rotation[0], normed.roll(self._size // 2, -1), rotation[1])
        cache[:, :turning, begin:end] = turned
        cache[:, turning:, begin:end] = heads[:, turning:]
        mixed = F.scaled_dot_product_attention(
            cache[:, : self._queries, begin:end],
            cache[:, self._queries : turning, :end],
            cache[:, turning:, :end],
            # The first call has two positions. Later calls have one, which attends to all positions before it.
            is_causal=begin == 0,
            scale=attention.scaling,
            enable_gqa=self._queries != self._keys,
        )
        hidden = add_linear(hidden, mixed.transpose(1, 2).flatten(2), attention.o_proj)
        gate, up = F.linear(normalize(hidden, self._layer.post_attention_layernorm), self._gates).chunk(2, dim=-1)
        return add_linear(hidden, self._activation(gate) * up, self._down)


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
        begin, graphs = time.monotonic(), 0
        for size in reversed(self._sizes):
            rows = like.new_zeros(size, hidden_size)
            numbers = torch.zeros(size, dtype=torch.int64, device=like.device)
            graphs += self._predict.warm_up(rows, rows, numbers.bool(), numbers, numbers)
        logger.info("captured %d CUDA graphs of the code predictor in %.1f s", graphs, time.monotonic() - begin)

    def predict(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns what CodePredictor.predict returns. Pads the batch with zeros to the next captured size."""
        count = inputs[0].shape[0]
        missing = next_size(count, self._sizes) - count
        if missing:
            inputs = tuple(torch.cat([given, given.new_zeros(missing, *given.shape[1:])]) for given in inputs)
        return self._predict(*inputs)[:count]
