"""code2wav's computation on a chunk of codes: transformers' modules, run with the state from earlier chunks.

Source: transformers 5.19, Qwen3OmniMoeCode2Wav.forward. The joined audio of a stream's chunks equals the result of that
forward on all codes, sample for sample, and nothing is computed twice. A transposed convolution of kernel 2r and stride
r needs the next input before it can complete the r values of an input. So the audio of N frames is `lookahead_samples`
shorter than N * frame_samples, as in transformers. The first chunk of a stream is shorter by these samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from omni_stage.models.qwen3_omni.code2wav.streams import StateLayout, States, read_layout


class ChunkDecoder:
    """A loaded Qwen3OmniMoeCode2Wav, run chunk by chunk. Holds no state."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._window: int = model.config.sliding_window
        self.layout: StateLayout = read_layout(model)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = self._model.code_embedding.weight.device
        return device

    def advance(self, codes: torch.Tensor, positions: Sequence[int], states: States) -> tuple[torch.Tensor, States]:
        """Returns the audio float32 [streams, samples] of codes int64 [streams, groups, frames], and the new states.

        `positions`: number of earlier frames of each stream. Either all are 0 or none is, because a stream's first
        chunk gives fewer samples. `states` is not changed.
        """
        model, past = self._model, iter(states.columns)
        kept: list[torch.Tensor] = []
        hidden = model.code_embedding(codes + model.code_offset).mean(1)
        hidden, attention = self._transform(hidden, torch.tensor(positions).to(codes.device), states.attention)
        hidden = hidden.permute(0, 2, 1)
        for upsampling, block in model.upsample:
            # Kernel and stride are equal here, so the outputs of neighbouring inputs do not overlap.
            hidden = upsampling(hidden)
            hidden = _next_block(block, hidden, past, kept)
        begins = positions[0] == 0
        for layer in model.decoder:
            hidden = _decode(layer, hidden, past, kept, begins=begins)
        return hidden[:, 0].clamp(min=-1, max=1), States(attention, kept)

    def _transform(
        self, hidden: torch.Tensor, positions: torch.Tensor, past: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the transformer's output [streams, frames, H], and the new keys and values."""
        transformer = self._model.pre_transformer
        frames, kept = hidden.shape[1], self._window - 1
        new = torch.arange(frames, device=hidden.device)
        cos, sin = transformer.rotary_emb(hidden, positions[:, None] + new)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        # Columns of keys: first `kept` columns of the past, then the new ones. Columns before the stream's first frame
        # are masked.
        column = torch.arange(kept + frames, device=hidden.device) - kept
        reach = new[:, None] - column[None]
        visible = (reach >= 0) & (reach < self._window)
        mask = visible[None] & (column[None, None] + positions[:, None, None] >= 0)
        mask = mask.unsqueeze(1)
        states: list[torch.Tensor] = []
        for index, layer in enumerate(transformer.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden)
            query, key, value = (
                projection(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
            key = torch.cat([past[:, index, 0], key], dim=2)
            value = torch.cat([past[:, index, 1], value], dim=2)
            states.append(torch.stack([key[:, :, frames:], value[:, :, frames:]], dim=1))
            mixed = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                scale=attention.scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            hidden = hidden + layer.self_attn_layer_scale(attention.o_proj(mixed.transpose(1, 2).flatten(2)))
            hidden = hidden + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(hidden)))
        return transformer.norm(hidden), torch.stack(states, dim=1)


def _rotate(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat([-second, first], dim=-1) * sin


def _next_block(
    block: Any, hidden: torch.Tensor, past: Iterator[torch.Tensor], kept: list[torch.Tensor]
) -> torch.Tensor:
    """Returns the output of transformers' Qwen3OmniMoeConvNeXtBlock, given its past inputs."""
    mixed = _convolve(block.dwconv, hidden, past, kept).permute(0, 2, 1)
    mixed = block.pwconv2(block.act(block.pwconv1(block.norm(mixed))))
    return hidden + (block.gamma * mixed).permute(0, 2, 1)


def _decode(
    layer: Any, hidden: torch.Tensor, past: Iterator[torch.Tensor], kept: list[torch.Tensor], *, begins: bool
) -> torch.Tensor:
    """Returns the output of a decoder layer. Runs its convolutions in the order of state.read_layout."""
    if hasattr(layer, "block"):
        for inner in layer.block:
            hidden = _decode(inner, hidden, past, kept, begins=begins)
        return hidden
    if hasattr(layer, "conv1"):
        mixed = _convolve(layer.conv1, layer.act1(hidden), past, kept)
        return hidden + _convolve(layer.conv2, layer.act2(mixed), past, kept)
    if hasattr(layer, "left_pad"):
        return _convolve_transposed(layer, hidden, past, kept, begins=begins)
    if hasattr(layer, "conv"):
        return _convolve(layer, hidden, past, kept)
    activated: torch.Tensor = layer(hidden)
    return activated


def _convolve(layer: Any, hidden: torch.Tensor, past: Iterator[torch.Tensor], kept: list[torch.Tensor]) -> torch.Tensor:
    """Returns the output of a causal convolution of stride 1, with the past inputs in place of its padding."""
    columns = layer.padding
    joined = torch.cat([next(past), hidden], dim=-1)
    kept.append(joined[..., joined.shape[-1] - columns :])
    convolved: torch.Tensor = layer.conv(joined)
    return convolved


def _convolve_transposed(
    layer: Any, hidden: torch.Tensor, past: Iterator[torch.Tensor], kept: list[torch.Tensor], *, begins: bool
) -> torch.Tensor:
    """Returns the output of a transposed convolution of kernel 2r and stride r: r values per pair of adjacent inputs.

    The last input of the previous chunk is the first input here, except at a stream's beginning.
    """
    last = next(past)
    kept.append(hidden[..., -1:])
    joined = hidden if begins else torch.cat([last, hidden], dim=-1)
    convolved: torch.Tensor = layer(joined)
    return convolved
