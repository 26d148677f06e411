"""Token2wav's diffusion transformer over a pack of blocks: transformers' weights, our own forward.

transformers' forward builds a mask of all frames by all frames for each head: tens of gigabytes for a minute of speech.
The mask lets a frame see its own block, and in a few layers also the block before or after. So here each block attends
only to itself and to these neighbours, and memory is linear in the length.

Values that are the same in many evaluations are computed once: a voice's speaker encoding, the projection of voice and
codes, the rotary table, the mask, and what the time point contributes to each layer (`modulate`). The rest is written
in few operators, because small windows cost less in arithmetic than in starting operators: on a CPU their calls, on a
GPU their launches.

`velocity` can be captured in a CUDA graph: it never waits for the device, and no shape depends on a tensor's values.
Source: transformers 5.19, models/qwen2_5_omni/modeling_qwen2_5_omni.py, Qwen2_5OmniToken2WavDiTModel.

Packs utterances of any lengths into blocks, so that one forward computes all of them.

The diffusion transformer attends within blocks of frames; a few layers also see the previous or the following block.
So attention needs only a block and its neighbours, and utterances are packed block after block:

    blocks    0  1  2 | 3  4 | 5 ...        utterance 0: three blocks, utterance 1: two, ...
    previous  0  0  1 | 3  3 | 5            index of the block before; at an utterance's start the block itself
    bias      0 for frames that may be seen, -inf for padding and for neighbours that do not exist

If a neighbour does not exist, the block's own index takes its place. So an utterance never reads a value of another
utterance, not even a masked value, and a NaN stays within its utterance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omni_stage.models.qwen2_5_omni.checkpoint import Voice
from omni_stage.models.shared.graphs import join


@dataclass(frozen=True, slots=True)
class BlockPack:
    """The positions of utterances' frames in B blocks of S frames. Tensors are on the CPU."""

    block_frames: int
    """S."""
    frames: tuple[int, ...]
    """Frames of each utterance."""
    positions: torch.Tensor
    """int64 [B, S]: index of a frame in its utterance."""
    previous: torch.Tensor
    """int64 [B]: index of the previous block of the same utterance; of the block itself if there is none."""
    following: torch.Tensor
    """int64 [B]: index of the next block of the same utterance; of the block itself if there is none."""
    bias: torch.Tensor
    """float32 [B, 3 x S]: 0 or -inf for each frame of the block before, of the block, and of the block after."""

    @property
    def counts(self) -> list[int]:
        """Number of blocks of each utterance."""
        return [count_blocks(frames, self.block_frames) for frames in self.frames]

    def fill(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns [B, S, C] on the rows' device from one [frames, C] per utterance. Padding is 0."""
        size, blocks = self.block_frames, self.positions.shape[0]
        parts = [
            functional.pad(row, (0, 0, 0, count * size - row.shape[0]))
            for row, count in zip(rows, self.counts, strict=True)
        ]
        missing = blocks - sum(self.counts)
        if missing:
            parts.append(parts[0].new_zeros(missing * size, parts[0].shape[1]))
        return torch.cat(parts).reshape(blocks, size, -1)

    def split(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Returns a view [frames, C] of [B, S, C] for each utterance."""
        starts = itertools.accumulate(self.counts[:-1], initial=0)
        return [
            packed[start : start + count].flatten(0, 1)[:frames]
            for start, count, frames in zip(starts, self.counts, self.frames, strict=True)
        ]


def count_blocks(frames: int, block_frames: int) -> int:
    """Returns the number of blocks that this many frames need."""
    return -(-frames // block_frames)


def pack_blocks(frames: Sequence[int], block_frames: int, blocks: int | None = None) -> BlockPack:
    """Returns the pack of utterances with these numbers of frames, each at least 1.

    `blocks`: total number of blocks; those that no utterance needs are padding that is never read.
    """
    counts = [count_blocks(count, block_frames) for count in frames]
    total = blocks or sum(counts)
    unread = total - sum(counts)
    last_filled = [length - (count - 1) * block_frames for length, count in zip(frames, counts, strict=True)]
    index = torch.arange(total)
    # Index of a block in its utterance. A padding block counts as an utterance by itself.
    place = torch.cat([torch.arange(count) for count in [*counts, *[1] * unread]])
    is_first = place == 0
    is_last = torch.cat([is_first[1:], torch.ones(1, dtype=torch.bool)])
    inside = torch.arange(block_frames)
    filled = torch.full((total,), block_frames)
    filled[is_last] = torch.tensor([*last_filled, *[block_frames] * unread])
    own = inside < filled[:, None]
    previous, following = index - (~is_first).long(), index + (~is_last).long()
    seen = torch.cat([own[previous] & ~is_first[:, None], own, own[following] & ~is_last[:, None]], dim=1)
    return BlockPack(
        block_frames=block_frames,
        frames=tuple(frames),
        positions=place[:, None] * block_frames + inside,
        previous=previous,
        following=following,
        bias=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf),
    )


_LAYER_ROWS = 6
"""Rows of a layer in a modulation: shift, factor and gate of the attention, then of the feed-forward part."""


class VoiceRows(NamedTuple):
    """The values that are added to the transformer's input at every frame. Both are float32 [H]."""

    given: torch.Tensor
    """With the voice; the codes are added separately."""
    dropped: torch.Tensor
    """Without voice and codes, for the unconditional half of the guidance."""


class Conditions(NamedTuple):
    """Values that stay the same over all evaluations of a pack of B blocks of S frames.

    With guidance there are R = 2 x B rows, and the second half has neither voice nor codes. Without guidance, R = B.
    """

    inputs: torch.Tensor
    """float32 [R, S, H]: the projection of voice and codes, with its bias."""
    rotation: torch.Tensor
    """complex64 [R, S, 1, head size / 2]: the rotary embedding of each pair of neighbouring numbers."""
    previous: torch.Tensor
    """int64 [R]: see BlockPack."""
    following: torch.Tensor
    """int64 [R]: see BlockPack."""
    bias: torch.Tensor
    """float32 [R, 1, 1, at least 3 x S]: see BlockPack. Rows are a multiple of 16 apart: GPU kernels would copy others
    in every layer of every evaluation."""
    guidance: torch.Tensor
    """float32 [B, 1, 1]: one more than the scale of the guidance."""


class BlockTransformer:
    """Our own forward of a Qwen2_5OmniToken2WavDiTModel, which holds the weights.

    Joins the projections of query, key and value of each layer. The model's own parameters become views of the joined
    ones, so nothing is held twice. Load the weights, and move the model to its device, before making this object.
    """

    def __init__(self, dit: Qwen2_5OmniToken2WavDiTModel) -> None:
        self._dit = dit
        config = dit.config
        projection = dit.input_embed.proj.weight
        # The order in which transformers' DiTInputEmbedding concatenates its inputs.
        sizes = [config.mel_dim, config.enc_dim, config.emb_dim, config.enc_emb_dim]
        self._mel_weight, self._encoder_weight, self._code_weight, self._speaker_weight = projection.split(sizes, dim=1)
        # Outside inference mode, in which a parameter's data cannot be replaced.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._layers = [_Layer(layer) for layer in dit.transformer_blocks]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._dit.proj_out.weight.device

    def encode_voice(self, voice: Voice) -> VoiceRows:
        """Returns a voice's part of the input. Runs the speaker encoder, so call this once for each voice."""
        dit = self._dit
        mel = voice.reference_mel.to(self.device)
        encoded = dit.input_embed.spk_encoder(torch.cat([mel, torch.zeros_like(mel)]))
        given, dropped = functional.linear(encoded, self._encoder_weight, dit.input_embed.proj.bias)
        speaker = functional.linear(voice.speaker.to(self.device)[0], self._speaker_weight)
        silence = functional.linear(dit.text_embed.codec_embed.weight[0], self._code_weight)
        return VoiceRows(given + speaker, dropped + silence)

    def condition(
        self,
        pack: BlockPack,
        codes: Sequence[torch.Tensor],
        voices: Sequence[VoiceRows],
        guidance: Sequence[float] | None,
    ) -> Conditions:
        """Returns the values that a pack's evaluations share.

        `guidance`: one scale for each utterance; None if there is no guidance.
        """
        dit, device = self._dit, self.device
        embedded = dit.text_embed.codec_embed(torch.cat(list(codes)).to(device))
        projected = functional.linear(embedded, self._code_weight)
        frames = torch.split(projected[:, None].expand(-1, dit.repeats, -1).flatten(0, 1), list(pack.frames))
        inputs = pack.fill([rows + voice.given for rows, voice in zip(frames, voices, strict=True)])
        aligned = functional.pad(pack.bias, (0, -pack.bias.shape[1] % 16))
        previous, following, bias = (table.to(device) for table in (pack.previous, pack.following, aligned))
        cos, sin = (table.chunk(2, dim=-1)[0] for table in dit.rotary_embed(inputs, pack.positions.to(device)))
        rotation = torch.complex(cos, sin)[:, :, None]
        scales = torch.ones(pack.positions.shape[0])
        if guidance is not None:
            dropped = [voice.dropped.expand(count, -1) for voice, count in zip(voices, pack.frames, strict=True)]
            inputs = torch.cat([inputs, pack.fill(dropped)])
            previous, following = (torch.cat([table, table + table.shape[0]]) for table in (previous, following))
            rotation, bias = (torch.cat([table, table]) for table in (rotation, bias))
            given = [scale for scale, count in zip(guidance, pack.counts, strict=True) for _ in range(count)]
            scales[: len(given)] += torch.tensor(given)
        return Conditions(inputs, rotation, previous, following, bias[:, None, None], scales.to(device)[:, None, None])

    def modulate(self, times: torch.Tensor) -> torch.Tensor:
        """Returns what each of the time points [T] contributes to the layers: float32 [T, 6 x layers + 2, H].

        All utterances of a pack are at the same time point, so these rows serve all of them.
        """
        dit = self._dit
        moment = functional.silu(dit.time_embed(times))
        parts = [layer.attn_norm.linear(moment).unflatten(1, (_LAYER_ROWS, -1)) for layer in dit.transformer_blocks]
        final = dit.norm_out.linear(moment).unflatten(1, (2, -1))
        rows = torch.cat([*parts, final.flip(1)], dim=1)
        # Each normalization multiplies by 1 + scale. Its scale follows its shift.
        rows[:, 1::3] += 1
        return rows

    def velocity(self, modulation: torch.Tensor, mel: torch.Tensor, conditions: Conditions) -> torch.Tensor:
        """Returns the rate of change float32 [B, S, mel bins] of `mel` [B, S, mel bins].

        `modulation`: the row of `modulate` for the current time point.
        """
        dit = self._dit
        hidden = functional.linear(mel, self._mel_weight)
        guided = conditions.inputs.shape[0] != mel.shape[0]
        if guided:
            hidden = (conditions.inputs.view(2, *hidden.shape) + hidden).flatten(0, 1)
        else:
            hidden = conditions.inputs + hidden
        *layers, final = torch.split(modulation, [_LAYER_ROWS] * len(self._layers) + [2])
        for layer, own in zip(self._layers, layers, strict=True):
            hidden = layer.run(hidden, own.unbind(), conditions)
        shift, factor = final.unbind()
        output: torch.Tensor = dit.proj_out(_normalize(hidden, factor, shift, dit.norm_out.norm.eps))
        if not guided:
            return output
        given, dropped = output.chunk(2)
        return torch.lerp(dropped, given, conditions.guidance)


class _Layer:
    """Computes what DiTDecoderLayer.forward does, with attention by blocks."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._heads: int = layer.attn.heads
        parts = (layer.attn.to_q, layer.attn.to_k, layer.attn.to_v)
        self._weight, self._bias = (join([getattr(part, name) for part in parts]) for name in ("weight", "bias"))

    def run(self, hidden: torch.Tensor, modulation: Sequence[torch.Tensor], conditions: Conditions) -> torch.Tensor:
        """Returns [R, S, H], the shape of `hidden`. `modulation`: six rows [H], see `BlockTransformer.modulate`."""
        shift, factor, gate, ff_shift, ff_factor, ff_gate = modulation
        layer = self._layer
        norm = _normalize(hidden, factor, shift, layer.attn_norm.norm.eps)
        hidden = torch.addcmul(hidden, self._attend(norm, conditions), gate)
        norm = _normalize(hidden, ff_factor, ff_shift, layer.ff_norm.eps)
        return torch.addcmul(hidden, layer.ff(norm), ff_gate)

    def _attend(self, hidden: torch.Tensor, conditions: Conditions) -> torch.Tensor:
        """Returns DiTAttention's result over each block and the neighbours that the layer sees: [R, S, H]."""
        layer, (rows, size, _) = self._layer, hidden.shape
        # [R, S, query key value, heads, head size]
        joined = functional.linear(hidden, self._weight, self._bias).view(rows, size, 3, self._heads, -1)
        # Only the first head is rotated, as in transformers' DiTAttention: the model was trained this way. transformers
        # also reorders the numbers of this head; the products of query and key are the same in either order.
        torch.view_as_complex(joined[:, :, :2, 0].view(rows, size, 2, -1, 2)).mul_(conditions.rotation)
        back, ahead = layer.look_backward_block, layer.look_ahead_block
        query, *seen = joined.unbind(2)
        key, value = (_with_neighbours(table, back, ahead, conditions).transpose(1, 2) for table in seen)
        bias = conditions.bias[..., (1 - back) * size : (2 + ahead) * size]
        attended = functional.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=bias)
        output: torch.Tensor = layer.attn.to_out[0](attended.transpose(1, 2).flatten(2))
        return output


def _normalize(hidden: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Returns the normalization of `hidden` [R, S, H], times `factor` [H], plus `shift` [H]."""
    return functional.layer_norm(hidden, factor.shape, factor, shift, epsilon)


def _with_neighbours(table: torch.Tensor, back: int, ahead: int, conditions: Conditions) -> torch.Tensor:
    """Returns [R, (1 + back + ahead) x S, ...] of keys or values [R, S, ...]."""
    parts = [table]
    if back:
        parts.insert(0, table.index_select(0, conditions.previous))
    if ahead:
        parts.append(table.index_select(0, conditions.following))
    return torch.cat(parts, dim=1) if len(parts) > 1 else table
