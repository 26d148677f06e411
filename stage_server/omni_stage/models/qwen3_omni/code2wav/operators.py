"""The parts of a step of code2wav that are one kernel each on a GPU (kernels.py), here as operators of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the layers of the transformer have in common."""

    window: int
    heads: int
    kept_heads: int
    """Of keys, and of values."""
    size: int
    """Of a head."""
    scaling: float
    frequencies: torch.Tensor
    """float32 [size // 2]: of the rotary embedding."""


@dataclass(slots=True)
class Unfinished:
    """The output [streams, channels, columns] of a convolution, and what is still to be done to it, in this order."""

    hidden: torch.Tensor
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    snake: tuple[torch.Tensor, torch.Tensor] | None = None
    """Of SnakeBeta, x + height * sin(scale * x) ** 2: scale and height [channels, 1]."""


class Operators:
    """The operators of one step. Each writes the state behind the step into `behind`, of the shape of `past`."""

    def __init__(self, attention: AttentionShape, positions: torch.Tensor, frames: int) -> None:
        """`positions` int64 [streams]: number of earlier frames of each stream."""
        self.shape, self.positions = attention, positions

    def attend(self, joined: torch.Tensor, past: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
        """Returns the result [streams, frames, heads * size] of attention over a window of frames.

        `joined`: queries, keys and values [streams, frames, all heads * size], before the rotary embedding; `past`:
        keys and values [streams, 2, kept heads, window - 1, size].
        """
        raise NotImplementedError

    def mix(
        self, block: Any, hidden: torch.Tensor, past: torch.Tensor, behind: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `hidden` [streams, columns, channels] through the convolution and the normalization of transformers'
        Qwen3OmniMoeConvNeXtBlock; and `hidden` plus the bias of the block's last layer."""
        raise NotImplementedError

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        """Returns silu(gate) * up of [..., gate and up]."""
        raise NotImplementedError

    def join(
        self, value: Unfinished, past: torch.Tensor, behind: torch.Tensor, before: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `value` without and with its activation; the latter follows the columns of `past`, as the input of
        the next convolution.

        The first `before` columns of a stream that begins are zeros.
        """
        raise NotImplementedError

    def close(self, value: Unfinished, before: int) -> torch.Tensor:
        """Returns the audio [streams, samples] of the last convolution's output, within [-1, 1]."""
        raise NotImplementedError


class PlainOperators(Operators):
    """In PyTorch, on any device. `value` and `hidden` may be changed in place."""

    def __init__(self, attention: AttentionShape, positions: torch.Tensor, frames: int) -> None:
        super().__init__(attention, positions, frames)
        self._begun = (positions > 0)[:, None, None]
        new = torch.arange(frames, device=positions.device)
        angles = (positions[:, None] + new)[:, None, :, None] * attention.frequencies
        cos, sin = angles.cos(), angles.sin()
        self._cos, self._sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        # Columns of keys: first the past's, then the new ones. Those before the stream's first frame are masked.
        kept = attention.window - 1
        column = torch.arange(kept + frames, device=positions.device) - kept
        reach = new[:, None] - column[None]
        visible = (reach >= 0) & (reach < attention.window)
        self._mask = (visible[None] & (column[None, None] + positions[:, None, None] >= 0)).unsqueeze(1)

    def attend(self, joined: torch.Tensor, past: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        heads = joined.view(*joined.shape[:2], -1, shape.size).transpose(1, 2)
        turning = shape.heads + shape.kept_heads
        unturned = heads[:, :turning]
        turned = torch.addcmul(unturned * self._cos, unturned.roll(shape.size // 2, -1), self._sin)
        query, key = turned[:, : shape.heads], turned[:, shape.heads :]
        window = torch.cat([past, torch.stack([key, heads[:, turning:]], dim=1)], dim=3)
        behind.copy_(window[:, :, :, joined.shape[1] :])
        mixed = F.scaled_dot_product_attention(
            query,
            window[:, 0],
            window[:, 1],
            attn_mask=self._mask,
            scale=shape.scaling,
            enable_gqa=shape.heads != shape.kept_heads,
        )
        return mixed.transpose(1, 2).flatten(2)

    def mix(
        self, block: Any, hidden: torch.Tensor, past: torch.Tensor, behind: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        joined = _follow(hidden.transpose(1, 2), past, behind)
        return block.norm(block.dwconv.conv(joined).transpose(1, 2)), hidden + block.pwconv2.bias

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        gate, up = joined.chunk(2, -1)
        return F.silu(gate) * up

    def join(
        self, value: Unfinished, past: torch.Tensor, behind: torch.Tensor, before: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = activated = self._finish(value, before)
        if value.snake is not None:
            scale, height = value.snake
            activated = torch.addcmul(hidden, height, (hidden * scale).sin_().square_())
        return hidden, _follow(activated, past, behind)

    def close(self, value: Unfinished, before: int) -> torch.Tensor:
        return self._finish(value, before)[:, 0].clamp_(min=-1, max=1)

    def _finish(self, value: Unfinished, before: int) -> torch.Tensor:
        hidden = value.hidden
        if value.bias is not None:
            hidden.add_(value.bias[:, None])
        if value.residual is not None:
            hidden.add_(value.residual)
        if before:
            hidden[..., :before].mul_(self._begun)
        return hidden


def _follow(hidden: torch.Tensor, past: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    """Returns the columns of `past`, then those of `hidden`. The last ones go into `behind`."""
    padding = past.shape[-1]
    if not padding:
        return hidden
    joined = torch.cat([past, hidden], dim=-1)
    behind.copy_(joined[..., joined.shape[-1] - padding :])
    return joined
