"""Token2wav's diffusion transformer over a pack of blocks: transformers' modules and weights, our own forward.

transformers' forward builds a mask of all frames by all frames for each head: tens of gigabytes for a minute of speech.
The mask lets a frame see its own block, and in a few layers also the block before or after. So here each block attends
only to itself and to these neighbours, and memory is linear in the length. Values that are the same in all evaluations
are computed once: a voice's speaker encoding, the projection of voice and codes, rotary tables, masks.

`velocity` can be captured in a CUDA graph: it never waits for the device, and no shape depends on a tensor's values.
Source: transformers 5.19, models/qwen2_5_omni/modeling_qwen2_5_omni.py, Qwen2_5OmniToken2WavDiTModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavDiTModel,
    apply_rotary_pos_emb,
    deinterleave_head_dim,
)

from omni_stage.models.qwen2_5_omni.checkpoint import Voice
from omni_stage.models.qwen2_5_omni.token2wav.wave.blocks import BlockPack


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
    cos: torch.Tensor
    """float32 [R, S, head size]."""
    sin: torch.Tensor
    """float32 [R, S, head size]."""
    previous: torch.Tensor
    """int64 [R]: see BlockPack."""
    following: torch.Tensor
    """int64 [R]: see BlockPack."""
    bias: torch.Tensor
    """float32 [R, 1, 1, 3 x S]: see BlockPack."""
    guidance: torch.Tensor
    """float32 [B, 1, 1]."""


class BlockTransformer:
    """Our own forward of a Qwen2_5OmniToken2WavDiTModel, which holds the weights."""

    def __init__(self, dit: Qwen2_5OmniToken2WavDiTModel) -> None:
        self._dit = dit
        config = dit.config
        projection = dit.input_embed.proj.weight
        # The order in which transformers' DiTInputEmbedding concatenates its inputs.
        sizes = [config.mel_dim, config.enc_dim, config.emb_dim, config.enc_emb_dim]
        self._mel_weight, self._encoder_weight, self._code_weight, self._speaker_weight = projection.split(sizes, dim=1)

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
        previous, following, bias = (table.to(device) for table in (pack.previous, pack.following, pack.bias))
        cos, sin = dit.rotary_embed(inputs, pack.positions.to(device))
        scales = torch.ones(pack.positions.shape[0])
        if guidance is not None:
            dropped = [voice.dropped.expand(count, -1) for voice, count in zip(voices, pack.frames, strict=True)]
            inputs = torch.cat([inputs, pack.fill(dropped)])
            previous, following = (torch.cat([table, table + table.shape[0]]) for table in (previous, following))
            cos, sin, bias = (torch.cat([table, table]) for table in (cos, sin, bias))
            given = [scale for scale, count in zip(guidance, pack.counts, strict=True) for _ in range(count)]
            scales[: len(given)] = torch.tensor(given)
        return Conditions(inputs, cos, sin, previous, following, bias[:, None, None], scales.to(device)[:, None, None])

    def velocity(self, time: torch.Tensor, mel: torch.Tensor, conditions: Conditions) -> torch.Tensor:
        """Returns the rate of change float32 [B, S, mel bins] of `mel` [B, S, mel bins] at `time`, a scalar []."""
        dit = self._dit
        hidden = functional.linear(mel, self._mel_weight)
        guided = conditions.inputs.shape[0] != mel.shape[0]
        if guided:
            hidden = torch.cat([hidden, hidden])
        hidden = hidden + conditions.inputs
        # All utterances are at the same time point, so one row is broadcast to all.
        moment = dit.time_embed(time.reshape(1))
        for layer in dit.transformer_blocks:
            hidden = _run_layer(layer, hidden, moment, conditions)
        output = dit.proj_out(dit.norm_out(hidden, moment))
        if not guided:
            return output
        given, dropped = output.chunk(2)
        return given + (given - dropped) * conditions.guidance


def _run_layer(layer: Any, hidden: torch.Tensor, moment: torch.Tensor, conditions: Conditions) -> torch.Tensor:
    """Returns the result of DiTDecoderLayer.forward, with attention by blocks: [R, S, H], the shape of `hidden`."""
    norm, attention_gate, shift, scale, gate = layer.attn_norm(hidden, emb=moment)
    hidden = hidden + attention_gate[:, None] * _attend(layer, norm, conditions)
    norm = layer.ff_norm(hidden) * (1 + scale[:, None]) + shift[:, None]
    return hidden + gate[:, None] * layer.ff(norm)


def _attend(layer: Any, hidden: torch.Tensor, conditions: Conditions) -> torch.Tensor:
    """Returns the result of DiTAttention.forward over each block and the neighbours that the layer sees: [R, S, H]."""
    attention = layer.attn
    rows, size, _ = hidden.shape
    query, key, value = (
        project(hidden).view(rows, size, attention.heads, -1).transpose(1, 2)
        for project in (attention.to_q, attention.to_k, attention.to_v)
    )
    # Only the first head is rotated, as in transformers' DiTAttention: the model was trained this way.
    query[:, :1], key[:, :1] = apply_rotary_pos_emb(
        deinterleave_head_dim(query[:, :1]), deinterleave_head_dim(key[:, :1]), conditions.cos, conditions.sin
    )
    back, ahead = layer.look_backward_block, layer.look_ahead_block
    key, value = (_with_neighbours(table, back, ahead, conditions) for table in (key, value))
    bias = conditions.bias[..., (1 - back) * size : (2 + ahead) * size]
    attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    output: torch.Tensor = attention.to_out[0](attended.transpose(1, 2).flatten(2))
    return output


def _with_neighbours(table: torch.Tensor, back: int, ahead: int, conditions: Conditions) -> torch.Tensor:
    """Returns [R, heads, (1 + back + ahead) x S, head size] of keys or values [R, heads, S, head size]."""
    parts = [table]
    if back:
        parts.insert(0, table.index_select(0, conditions.previous))
    if ahead:
        parts.append(table.index_select(0, conditions.following))
    return torch.cat(parts, dim=2) if len(parts) > 1 else table
