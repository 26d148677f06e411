"""code2wav's computation on a chunk of codes: transformers' modules, run with the state from earlier chunks.

Source: transformers 5.19, Qwen3OmniMoeCode2Wav.forward. The joined audio of a stream's chunks equals the result of that
forward on all codes, sample for sample, and nothing is computed twice. A transposed convolution of kernel 2r and stride
r needs the next input before it can complete the r values of an input. So the audio of N frames is `lookahead` samples
shorter than N * frame_samples, as in transformers.

All streams of a batch run alike, whether they begin or not. A stream that begins gets r values too many from each
transposed convolution: they lie before its start. They are set to zero in each layer, as the padding of transformers'
convolutions is, and its first `lookahead` samples are not part of its audio.

Nothing here depends on values on the host, so a CUDA graph can hold all of it. Its time is mostly that of its nodes, so
there are few: biases, residuals, activations, paddings and states of adjacent layers are one operator (operators.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_stage.models.qwen3_omni.code2wav.operators import AttentionShape, Operators, PlainOperators, Unfinished
from omni_stage.models.qwen3_omni.code2wav.streams import StateLayout, read_layout
from omni_stage.models.shared.graphs import add_linear, join_linear, normalize


class ChunkDecoder:
    """A loaded Qwen3OmniMoeCode2Wav, run chunk by chunk. Holds no state. Make it after the weights are loaded."""

    def __init__(self, model: Any) -> None:
        """Rearranges the weights of `model`, for fewer kernels: matrices that read the same input are joined, and
        scales are multiplied into the matrices before them. The model's own parameters become views of the result."""
        self._model = model
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
        for layer in layers:
            _scale_outputs(layer.self_attn.o_proj, layer.self_attn_layer_scale.scale)
            _scale_outputs(layer.mlp.down_proj, layer.mlp_layer_scale.scale)
        self._upsamplings = [_to_linear(upsampling.conv) for upsampling, _ in model.upsample]
        for _, block in model.upsample:
            _scale_outputs(block.pwconv2, block.gamma)
        attention = layers[0].self_attn
        _, _, kept_heads, kept, size = self.layout.attention
        frequencies = model.pre_transformer.rotary_emb.inv_freq.float()
        self._shape = AttentionShape(
            kept + 1, model.config.num_attention_heads, kept_heads, size, attention.scaling, frequencies
        )
        self.codebook_size = int(model.config.codebook_size)
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
        self,
        codes: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor,
        operators: type[Operators] = PlainOperators,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the audio float32 [streams, samples] of codes int64 [streams, groups, frames], and the new states.

        `positions` int64 [streams]: number of earlier frames of each stream. `states`: [streams, layout.numbers], not
        changed. The first `lookahead` samples of a stream at position 0 are zeros, which are not part of its audio.
        """
        model = self._model
        behind = torch.empty_like(states)
        past_attention, past = self.layout.split(states)
        new_attention, new = self.layout.split(behind)
        step = operators(self._shape, positions, codes.shape[-1])
        hidden = model.code_embedding(codes + model.code_offset).mean(1)
        hidden = self._transform(step, hidden, past_attention, new_attention)
        run = _Pass(step, iter(zip(past, new, strict=True)), self._snakes)
        for (_, block), (weight, bias) in zip(model.upsample, self._upsamplings, strict=True):
            hidden = F.linear(hidden, weight, bias).view(len(hidden), -1, hidden.shape[-1])
            hidden = run.next_block(block, hidden)
        value = Unfinished(hidden.transpose(1, 2))
        for layer in model.decoder:
            value = run.decode(layer, value)
        return step.close(value, run.before), behind

    def _transform(
        self, step: Operators, hidden: torch.Tensor, past: torch.Tensor, behind: torch.Tensor
    ) -> torch.Tensor:
        """Returns the transformer's output [streams, frames, H]. Writes the new keys and values into `behind`."""
        transformer = self._model.pre_transformer
        for index, layer in enumerate(transformer.layers):
            joined = F.linear(normalize(hidden, layer.input_layernorm), *self._inputs[index])
            mixed = step.attend(joined, past[:, index], behind[:, index])
            hidden = add_linear(hidden, mixed, layer.self_attn.o_proj)
            joined = F.linear(normalize(hidden, layer.post_attention_layernorm), *self._gates[index])
            hidden = add_linear(hidden, step.gate(joined), layer.mlp.down_proj)
        return normalize(hidden, transformer.norm)


def _scale_outputs(layer: nn.Linear, scale: nn.Parameter) -> None:
    """Multiply the outputs of a linear layer by `scale` in its own weights, in place, and set the scale to one."""
    for parameter in layer.parameters():
        parameter.data.mul_(scale.data.view(-1, *[1] * (parameter.dim() - 1)))
    scale.data.fill_(1)


def _to_linear(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weight and the bias of a linear layer that computes a transposed convolution whose kernel is its
    stride: the outputs of neighbouring inputs do not overlap. The outputs of an input are one after another."""
    inputs, outputs, stride = layer.weight.shape
    weight = layer.weight.data.permute(2, 1, 0).reshape(-1, inputs)
    layer.weight.data = weight.view(stride, outputs, inputs).permute(2, 1, 0)
    return weight, layer.bias.detach().repeat(stride)


@dataclass(slots=True)
class _Pass:
    """One run of the convolutions, in the order of streams.read_layout."""

    step: Operators
    states: Iterator[tuple[torch.Tensor, torch.Tensor]]
    """Of each convolution: the state, and where the new one goes."""
    snakes: dict[int, tuple[torch.Tensor, torch.Tensor]]
    before: int = 0
    """Number of columns before the start of a stream that begins."""

    def next_block(self, block: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the output of transformers' Qwen3OmniMoeConvNeXtBlock: [streams, columns, channels], as `hidden`."""
        normed, base = self.step.mix(block, hidden, *next(self.states))
        # The bias is in the base.
        weight = block.pwconv2.weight
        base.view(-1, base.shape[-1]).addmm_(block.act(block.pwconv1(normed)).flatten(0, 1), weight.T)
        return base

    def decode(self, layer: Any, value: Unfinished) -> Unfinished:
        """Returns the output of a layer of the decoder."""
        if hasattr(layer, "block"):
            for inner in layer.block:
                value = self.decode(inner, value)
            return value
        if hasattr(layer, "conv1"):
            value.snake = self.snakes[id(layer.act1)]
            residual, joined = self._join(value)
            value = self._convolve(layer.conv1, joined)
            value.snake = self.snakes[id(layer.act2)]
            _, joined = self._join(value)
            value = self._convolve(layer.conv2, joined)
            value.residual = residual
            return value
        if hasattr(layer, "conv"):
            _, joined = self._join(value)
            return self._convolve(layer, joined)
        value.snake = self.snakes[id(layer)]
        return value

    def _join(self, value: Unfinished) -> tuple[torch.Tensor, torch.Tensor]:
        return self.step.join(value, *next(self.states), self.before)

    def _convolve(self, layer: Any, joined: torch.Tensor) -> Unfinished:
        """Returns the output of a causal convolution of stride 1; or of a transposed convolution of kernel 2r and
        stride r: r values per pair of adjacent inputs. `joined` begins with the past inputs."""
        conv = layer.conv
        if hasattr(layer, "left_pad"):
            self.before = (self.before + 1) * conv.stride[0]
            hidden = F.conv_transpose1d(joined, conv.weight, stride=conv.stride, padding=layer.left_pad)
        else:
            hidden = F.conv1d(joined, conv.weight, dilation=conv.dilation, groups=conv.groups)
        return Unfinished(hidden, conv.bias)
