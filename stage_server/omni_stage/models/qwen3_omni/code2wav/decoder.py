"""code2wav's computation on a chunk of codes: transformers' modules, run with the state from earlier chunks.

Source: transformers 5.19, Qwen3OmniMoeCode2Wav.forward. The joined audio of a stream's chunks equals the result of that
forward on all codes, sample for sample, and nothing is computed twice. A transposed convolution of kernel 2r and stride
r needs the next input before it can complete the r values of an input. So the audio of N frames is `lookahead` samples
shorter than N * frame_samples, as in transformers.

All streams of a batch run alike, whether they begin or not. A stream that begins gets r values too many from each
transposed convolution: they lie before its start. They are set to zero in each layer, as the padding of transformers'
convolutions is, and its first `lookahead` samples are not part of its audio.

Nothing here depends on values on the host, so a CUDA graph can hold all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from omni_stage.models.qwen3_omni.code2wav.streams import StateLayout, read_layout
from omni_stage.models.shared.graphs import join_linear, normalize


class ChunkDecoder:
    """A loaded Qwen3OmniMoeCode2Wav, run chunk by chunk. Holds no state. Make it after the weights are loaded."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._window: int = model.config.sliding_window
        self.layout: StateLayout = read_layout(model)
        self._snakes = {
            id(module): (
                module.alpha.detach().exp()[:, None],
                1 / (module.beta.detach().exp()[:, None] + module.no_div_by_zero),
            )
            for module in model.modules()
            if hasattr(module, "no_div_by_zero")
        }
        """Of each activation: the factor in its sine, and the factor of the square."""
        layers = model.pre_transformer.layers
        self._inputs = [
            join_linear((one.self_attn.q_proj, one.self_attn.k_proj, one.self_attn.v_proj)) for one in layers
        ]
        self._gates = [join_linear((layer.mlp.gate_proj, layer.mlp.up_proj)) for layer in layers]
        """Matrices that read the same input are joined, for fewer kernels. The model's own become views of them."""
        self.lookahead = 0
        """Number of samples before the start of a stream that begins."""
        for module in model.decoder.modules():
            if hasattr(module, "left_pad"):
                self.lookahead = (self.lookahead + 1) * module.conv.stride[0]

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = self._model.code_embedding.weight.device
        return device

    def advance(
        self, codes: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the audio float32 [streams, samples] of codes int64 [streams, groups, frames], and the new states.

        `positions` int64 [streams]: number of earlier frames of each stream. `states`: [streams, layout.numbers], not
        changed. The first `lookahead` samples of a stream at position 0 are zeros, which are not part of its audio.
        """
        model = self._model
        behind = torch.empty_like(states)
        past_attention, past = self.layout.split(states)
        new_attention, new = self.layout.split(behind)
        run = _Pass(iter(past), iter(new), (positions > 0).to(states.dtype)[:, None, None], self._snakes)
        hidden = model.code_embedding(codes + model.code_offset).mean(1)
        hidden = self._transform(hidden, positions, past_attention, new_attention).permute(0, 2, 1)
        for upsampling, block in model.upsample:
            # Kernel and stride are equal here, so the outputs of neighbouring inputs do not overlap.
            hidden = run.next_block(block, upsampling(hidden))
        for layer in model.decoder:
            hidden = run.decode(layer, hidden)
        return hidden[:, 0].clamp(min=-1, max=1), behind

    def _transform(
        self, hidden: torch.Tensor, positions: torch.Tensor, past: torch.Tensor, behind: torch.Tensor
    ) -> torch.Tensor:
        """Returns the transformer's output [streams, frames, H]. Writes the new keys and values into `behind`."""
        transformer = self._model.pre_transformer
        frames, kept = hidden.shape[1], self._window - 1
        new = torch.arange(frames, device=hidden.device)
        cos, sin = transformer.rotary_emb(hidden, positions[:, None] + new)
        half = cos.shape[-1] // 2
        cos, sin = cos.unsqueeze(1), torch.cat([-sin[..., :half], sin[..., half:]], dim=-1).unsqueeze(1)
        # Columns of keys: first `kept` columns of the past, then the new ones. Columns before the stream's first frame
        # are masked.
        column = torch.arange(kept + frames, device=hidden.device) - kept
        reach = new[:, None] - column[None]
        visible = (reach >= 0) & (reach < self._window)
        mask = visible[None] & (column[None, None] + positions[:, None, None] >= 0)
        mask = mask.unsqueeze(1)
        for index, layer in enumerate(transformer.layers):
            attention = layer.self_attn
            joined = F.linear(normalize(hidden, layer.input_layernorm), *self._inputs[index])
            heads = joined.view(*joined.shape[:2], -1, attention.head_dim).transpose(1, 2)
            kept_heads = past.shape[3]
            turning = heads.shape[1] - kept_heads
            unturned = heads[:, :turning]
            turned = torch.addcmul(unturned * cos, unturned.roll(half, -1), sin)
            query, key = turned[:, :-kept_heads], turned[:, -kept_heads:]
            window = torch.cat([past[:, index], torch.stack([key, heads[:, turning:]], dim=1)], dim=3)
            behind[:, index].copy_(window[:, :, :, frames:])
            mixed = F.scaled_dot_product_attention(
                query,
                window[:, 0],
                window[:, 1],
                attn_mask=mask,
                scale=attention.scaling,
                enable_gqa=query.shape[1] != kept_heads,
            )
            mixed = attention.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = torch.addcmul(hidden, layer.self_attn_layer_scale.scale, mixed)
            gate, up = F.linear(normalize(hidden, layer.post_attention_layernorm), *self._gates[index]).chunk(2, -1)
            mixed = layer.mlp.down_proj(layer.mlp.act_fn(gate) * up)
            hidden = torch.addcmul(hidden, layer.mlp_layer_scale.scale, mixed)
        return normalize(hidden, transformer.norm)


@dataclass(slots=True)
class _Pass:
    """One run of the convolutions, in the order of streams.read_layout."""

    past: Iterator[torch.Tensor]
    behind: Iterator[torch.Tensor]
    """Where each convolution's new state goes."""
    begun: torch.Tensor
    """[streams, 1, 1]: 0 for a stream that begins in this chunk, else 1."""
    snakes: dict[int, tuple[torch.Tensor, torch.Tensor]]
    before: int = 0
    """Number of columns before the start of a stream that begins."""

    def next_block(self, block: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the output of transformers' Qwen3OmniMoeConvNeXtBlock."""
        mixed = self._convolve(block.dwconv, hidden).permute(0, 2, 1)
        mixed = block.pwconv2(block.act(block.pwconv1(block.norm(mixed))))
        return hidden + (block.gamma * mixed).permute(0, 2, 1)

    def decode(self, layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the output of a layer of the decoder."""
        if hasattr(layer, "block"):
            for inner in layer.block:
                hidden = self.decode(inner, hidden)
            return hidden
        if hasattr(layer, "conv1"):
            mixed = self._convolve(layer.conv1, self._activate(layer.act1, hidden))
            return hidden + self._convolve(layer.conv2, self._activate(layer.act2, mixed))
        if hasattr(layer, "left_pad"):
            return self._convolve_transposed(layer, hidden)
        if hasattr(layer, "conv"):
            return self._convolve(layer, hidden)
        return self._activate(layer, hidden)

    def _activate(self, layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns x + sin(a x) ** 2 / b of transformers' SnakeBeta; 0 stays 0."""
        scale, height = self.snakes[id(layer)]
        return torch.addcmul(hidden, height, (hidden * scale).sin_().square_())

    def _convolve(self, layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the output of a causal convolution of stride 1, with the past inputs in place of its padding."""
        last, kept = next(self.past), next(self.behind)
        if layer.padding:
            hidden = torch.cat([last, hidden], dim=-1)
            kept.copy_(hidden[..., hidden.shape[-1] - layer.padding :])
        return self._clear(layer.conv(hidden))

    def _convolve_transposed(self, layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the output of a transposed convolution of kernel 2r and stride r: r values per pair of adjacent
        inputs. The last input of the previous chunk is the first input here."""
        joined = torch.cat([next(self.past), hidden], dim=-1)
        next(self.behind).copy_(hidden[..., -1:])
        self.before = (self.before + 1) * layer.conv.stride[0]
        return self._clear(layer(joined))

    def _clear(self, hidden: torch.Tensor) -> torch.Tensor:
        """Set what lies before a stream's start to zero, in place: a layer's bias is not zero there."""
        if self.before:
            hidden[..., : self.before].mul_(self.begun)
        return hidden
