"""The operators of code2wav (operators.py), each as one kernel of Triton.

A CUDA graph's time grows with its nodes, since most of a step's kernels are short. A wrong or missing kernel does not
reach a listener: before a stage is ready, it compares these kernels with PyTorch's operators (steps.StepRunner).
Computations are in float32; sines and cosines are CUDA's accurate ones, as PyTorch's are.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from omni_stage.models.qwen3_omni.code2wav.operators import Operators, Unfinished

_BLOCK = 1024
_SNAKE, _CLAMP = 1, 2
_SIZES = ["size", "channels", "columns", "padding", "before", "past", "behind", "past_row", "position_row"]
"""Arguments that vary. Triton would compile a kernel again for each that is 1, or a multiple of 16, or neither."""


class FusedOperators(Operators):
    """On an NVIDIA GPU, in float32."""

    def attend(self, joined: torch.Tensor, past: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
        shape, (streams, frames, _) = self.shape, joined.shape
        mixed = joined.new_empty(streams, frames, shape.heads * shape.size)
        _attend[(streams * shape.heads,)](
            joined,
            past,
            behind,
            self.positions,
            shape.frequencies,
            mixed,
            frames,
            past.stride(0),
            self.positions.stride(0),
            shape.scaling,
            HEADS=shape.heads,
            KEPT_HEADS=shape.kept_heads,
            SIZE=shape.size,
            WINDOW=shape.window,
            FRAMES=max(16, triton.next_power_of_2(frames)),
            COLUMNS=max(16, triton.next_power_of_2(shape.window - 1 + frames)),
            WIDTH=max(16, triton.next_power_of_2(shape.size)),
        )
        return mixed

    def mix(
        self, block: Any, hidden: torch.Tensor, past: torch.Tensor, behind: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams, columns, channels = hidden.shape
        normed, base = torch.empty_like(hidden), torch.empty_like(hidden)
        convolution, norm = block.dwconv.conv, block.norm
        _mix[(streams * columns,)](
            hidden,
            convolution.weight,
            convolution.bias,
            norm.weight,
            norm.bias,
            block.pwconv2.bias,
            past,
            behind,
            normed,
            base,
            columns,
            channels,
            past.stride(0),
            norm.eps,
            KERNEL=past.shape[-1] + 1,
            BLOCK=triton.next_power_of_2(channels),
        )
        return normed, base

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        width = joined.shape[-1] // 2
        result = joined.new_empty(*joined.shape[:-1], width)
        _gate[(triton.cdiv(result.numel(), _BLOCK),)](joined, result, result.numel(), width, BLOCK=_BLOCK)
        return result

    def join(
        self, value: Unfinished, past: torch.Tensor, behind: torch.Tensor, before: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams, channels, columns = value.hidden.shape
        joined = value.hidden.new_empty(streams, channels, past.shape[-1] + columns)
        # Without bias and residual, the value is complete already.
        keeps = value.bias is not None or value.residual is not None
        total = value.hidden.new_empty(value.hidden.shape) if keeps else value.hidden
        self._join(value, past, behind, before, total if keeps else None, joined, _SNAKE if value.snake else 0)
        return total, joined

    def close(self, value: Unfinished, before: int) -> torch.Tensor:
        audio = torch.empty_like(value.hidden)
        nothing = value.hidden[..., :0]
        self._join(value, nothing, nothing, before, None, audio, _CLAMP)
        return audio[:, 0]

    def _join(
        self,
        value: Unfinished,
        past: torch.Tensor,
        behind: torch.Tensor,
        before: int,
        total: torch.Tensor | None,
        joined: torch.Tensor,
        activation: int,
    ) -> None:
        scale, height = value.snake or (None, None)
        _, channels, columns = value.hidden.shape
        _join[(triton.cdiv(joined.numel(), _BLOCK),)](
            value.hidden,
            value.bias,
            value.residual,
            scale,
            height,
            past,
            behind,
            self.positions,
            total,
            joined,
            joined.numel(),
            channels,
            columns,
            past.shape[-1],
            before,
            past.stride(0),
            self.positions.stride(0),
            CHANNELS_LAST=not value.hidden.is_contiguous(),
            ACTIVATION=activation,
            BLOCK=_BLOCK,
        )


@triton.jit(do_not_specialize=_SIZES)
def _join(
    hidden: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    scale: tl.tensor,
    height: tl.tensor,
    past: tl.tensor,
    behind: tl.tensor,
    positions: tl.tensor,
    total: tl.tensor,
    joined: tl.tensor,
    size: tl.tensor,
    channels: tl.tensor,
    columns: tl.tensor,
    padding: tl.tensor,
    before: tl.tensor,
    past_row: tl.tensor,
    position_row: tl.tensor,
    CHANNELS_LAST: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    row = place // (padding + columns)
    column = place % (padding + columns) - padding
    stream = row // channels
    channel = row % channels
    new = inside & (column >= 0)
    source = row * columns + column
    if CHANNELS_LAST:
        value = tl.load(hidden + (stream * columns + column) * channels + channel, mask=new, other=0.0)
    else:
        value = tl.load(hidden + source, mask=new, other=0.0)
    if bias is not None:
        value += tl.load(bias + channel, mask=inside, other=0.0)
    if residual is not None:
        value += tl.load(residual + source, mask=new, other=0.0)
    position = tl.load(positions + stream * position_row, mask=inside, other=0)
    value = tl.where((column < before) & (position == 0), 0.0, value)
    if total is not None:
        tl.store(total + source, value, mask=new)
    if ACTIVATION == 1:
        sine = tl.sin(value * tl.load(scale + channel, mask=inside, other=0.0))
        value += tl.load(height + channel, mask=inside, other=0.0) * (sine * sine)
    if ACTIVATION == 2:
        # Written this way, NaN stays NaN, and is refused.
        value = tl.where(value > 1.0, 1.0, tl.where(value < -1.0, -1.0, value))
    state = stream * past_row + channel * padding + column
    old = tl.load(past + state + padding, mask=inside & (column < 0), other=0.0)
    value = tl.where(column < 0, old, value)
    tl.store(joined + place, value, mask=inside)
    # The last `padding` of the padding + columns columns.
    tl.store(behind + state + padding - columns, value, mask=inside & (column >= columns - padding))


@triton.jit(do_not_specialize=_SIZES)
def _mix(
    hidden: tl.tensor,
    taps: tl.tensor,
    bias: tl.tensor,
    weight: tl.tensor,
    shift: tl.tensor,
    added: tl.tensor,
    past: tl.tensor,
    behind: tl.tensor,
    normed: tl.tensor,
    base: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    past_row: tl.tensor,
    epsilon: tl.tensor,
    KERNEL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    stream = tl.program_id(0) // columns
    column = tl.program_id(0) % columns
    channel = tl.arange(0, BLOCK)
    own = channel < channels
    row = stream * columns * channels + channel
    state = stream * past_row + channel * (KERNEL - 1)
    mixed = tl.load(bias + channel, mask=own, other=0.0)
    for tap in tl.static_range(KERNEL):
        place = column + tap - (KERNEL - 1)
        old = tl.load(past + state + place + (KERNEL - 1), mask=own & (place < 0), other=0.0)
        new = tl.load(hidden + row + place * channels, mask=own & (place >= 0), other=0.0)
        mixed += tl.load(taps + channel * KERNEL + tap, mask=own, other=0.0) * (old + new)
    value = tl.load(hidden + row + column * channels, mask=own, other=0.0)
    last = column + (KERNEL - 1) - columns
    tl.store(behind + state + last, value, mask=own & (last >= 0))
    for index in tl.static_range(KERNEL - 1):
        # A chunk of fewer columns than the state has leaves some of the old ones.
        stays = own & (column == 0) & (index >= columns)
        tl.store(behind + state + index - columns, tl.load(past + state + index, mask=stays, other=0.0), mask=stays)
    mean = tl.sum(tl.where(own, mixed, 0.0), 0) / channels
    centered = tl.where(own, mixed - mean, 0.0)
    deviation = tl.sqrt_rn(tl.sum(centered * centered, 0) / channels + epsilon)
    result = centered / deviation * tl.load(weight + channel, mask=own, other=0.0)
    place = row + column * channels
    tl.store(normed + place, result + tl.load(shift + channel, mask=own, other=0.0), mask=own)
    tl.store(base + place, value + tl.load(added + channel, mask=own, other=0.0), mask=own)


@triton.jit(do_not_specialize=[*_SIZES, "frames"])
def _attend(
    joined: tl.tensor,
    past: tl.tensor,
    behind: tl.tensor,
    positions: tl.tensor,
    frequencies: tl.tensor,
    mixed: tl.tensor,
    frames: tl.tensor,
    past_row: tl.tensor,
    position_row: tl.tensor,
    scaling: tl.tensor,
    HEADS: tl.constexpr,
    KEPT_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    FRAMES: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    stream = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    kept_head = head // (HEADS // KEPT_HEADS)
    position = tl.load(positions + stream * position_row)
    axis = tl.arange(0, WIDTH)
    real = axis < SIZE
    lower = axis < SIZE // 2
    frequency = tl.load(frequencies + axis % (SIZE // 2), mask=real, other=0.0)
    other = tl.where(lower, axis + SIZE // 2, axis - SIZE // 2)
    sign = tl.where(lower, -1.0, 1.0)
    frame = tl.arange(0, FRAMES)
    column = tl.arange(0, COLUMNS) - (WINDOW - 1)
    step = joined + stream * frames * ((HEADS + 2 * KEPT_HEADS) * SIZE)
    # Queries of the new frames.
    asking = (frame < frames)[:, None] & real[None, :]
    row = step + frame[:, None] * ((HEADS + 2 * KEPT_HEADS) * SIZE) + head * SIZE
    angle = (position + frame).to(tl.float32)[:, None] * frequency[None, :]
    query = tl.load(row + axis[None, :], mask=asking, other=0.0) * tl.cos(angle)
    query += tl.load(row + other[None, :], mask=asking, other=0.0) * (sign[None, :] * tl.sin(angle))
    # Keys and values: the past's are as they were stored.
    new = ((column >= 0) & (column < frames))[:, None] & real[None, :]
    old = (column < 0)[:, None] & real[None, :]
    row = step + column[:, None] * ((HEADS + 2 * KEPT_HEADS) * SIZE) + (HEADS + kept_head) * SIZE
    angle = (position + column).to(tl.float32)[:, None] * frequency[None, :]
    key = tl.load(row + axis[None, :], mask=new, other=0.0) * tl.cos(angle)
    key += tl.load(row + other[None, :], mask=new, other=0.0) * (sign[None, :] * tl.sin(angle))
    value = tl.load(row + KEPT_HEADS * SIZE + axis[None, :], mask=new, other=0.0)
    state = stream * past_row + (kept_head * (WINDOW - 1) + column[:, None] + (WINDOW - 1)) * SIZE + axis[None, :]
    values = KEPT_HEADS * (WINDOW - 1) * SIZE
    key += tl.load(past + state, mask=old, other=0.0)
    value += tl.load(past + state + values, mask=old, other=0.0)
    # The last WINDOW - 1 columns stay. Heads that share keys would all write the same.
    stays = (old | new) & (column + (WINDOW - 1) >= frames)[:, None] & (head % (HEADS // KEPT_HEADS) == 0)
    tl.store(behind + state - frames * SIZE, key, mask=stays)
    tl.store(behind + state + values - frames * SIZE, value, mask=stays)
    reach = frame[:, None] - column[None, :]
    visible = (reach >= 0) & (reach < WINDOW) & (position + column >= 0)[None, :]
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scaling
    scores = tl.where(visible, scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    result = tl.dot(weights, value, input_precision="ieee") / tl.sum(weights, 1)[:, None]
    place = (stream * frames + frame[:, None]) * (HEADS * SIZE) + head * SIZE + axis[None, :]
    tl.store(mixed + place, result, mask=asking)


@triton.jit(do_not_specialize=_SIZES)
def _gate(joined: tl.tensor, result: tl.tensor, size: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> None:
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    source = joined + place // width * (2 * width) + place % width
    gate = tl.load(source, mask=inside, other=0.0)
    up = tl.load(source + width, mask=inside, other=0.0)
    tl.store(result + place, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)
