"""Runs the thinker's audio clips through the audio encoder, with the same result as for each clip alone."""

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

    The encoder's convolutions run over windows, padded to the longest window of the call, and have biases: after the
    end of a short last window the first layer writes values that are not zero, and the next layer reads them. A clip of
    at least one whole window is always padded to that window's length. A shorter clip is padded to it only next to a
    longer one: it needs a call of its own, or its rows would depend on which requests share the step.
    features: [mel bins, frames of all clips]; lengths: frames of each; window: frames of a window.
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
