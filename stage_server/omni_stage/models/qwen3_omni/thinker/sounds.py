"""Encodes the thinker's audio clips, so that a clip's result does not depend on the other clips of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch


def encode_each(
    encode: Callable[[torch.Tensor, Sequence[int]], Sequence[torch.Tensor]],
    features: torch.Tensor,
    lengths: Sequence[int],
    window: int,
) -> tuple[torch.Tensor, ...]:
    """Returns the encoder's rows for each audio clip, independent of the other clips in the call.

    `features`: [mel bins, frames of all clips]; `lengths`: frames of each clip; `window`: frames per window.

    The encoder's convolutions run over windows, which are padded to the longest window of the call. Because of their
    biases, the first layer writes nonzero values into the padding of a short last window, and the next layer reads
    these values. In a clip of at least one full window, the last window is always padded to full length. A clip shorter
    than a window is padded only next to a longer clip, so its rows would depend on which requests share the step. It
    therefore gets a call of its own.
    """
    rows: list[torch.Tensor] = []
    begin = 0
    for short, group in groupby(lengths, lambda length: length < window):
        together = list(group)
        for part in [[length] for length in together] if short else [together]:
            end = begin + sum(part)
            rows.extend(encode(features[:, begin:end], part))
            begin = end
    return tuple(rows)
